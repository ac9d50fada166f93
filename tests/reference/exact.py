"""Norms and sums of powers in decimals of 60 digits: no overflow, no underflow, no order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import Any

import numpy as np

_CONTEXT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _power(value: float, p: float) -> Decimal:
    number = Decimal(abs(value))
    return number if number == 0 or p == 1 else number * number if p == 2 else number ** Decimal(p)


def power_sum(values: Iterable[float], p: float, scale: float = 1.0) -> Decimal:
    """Σ(|v| / scale)^p over the finite values."""
    with localcontext(_CONTEXT):
        divisor = _power(scale, p)
        return sum((_power(v, p) for v in values if math.isfinite(v)), Decimal(0)) / divisor


def root(total: Decimal, p: float) -> float:
    with localcontext(_CONTEXT):
        return float(total if p == 1 or total == 0 else total.sqrt() if p == 2 else total ** (Decimal(1) / Decimal(p)))


def norm(arrays: Iterable[np.ndarray[Any, Any]], p: float) -> float:
    """The norm of all values together. NaN if any is NaN, else infinity if any is infinite."""
    values = [float(v) for array in arrays for v in array.reshape(-1)]
    if any(math.isnan(v) for v in values):
        return math.nan
    if any(math.isinf(v) for v in values):
        return math.inf
    if math.isinf(p):
        return max(map(abs, values), default=0.0)
    return root(power_sum(values, p), p)


def halves(total: Decimal) -> tuple[float, float]:
    """As an unevaluated sum of two doubles."""
    with localcontext(_CONTEXT):
        high = float(total)
        return high, float(total - Decimal(high)) if math.isfinite(high) else 0.0
