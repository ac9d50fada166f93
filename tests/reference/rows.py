"""The 64-byte rows that a rank hands over on data path `stats`, made from its local values."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from .exact import halves, power_sum

ROW = struct.Struct("<Q4d3Q")


@dataclass(frozen=True, slots=True)
class Row:
    stamp: int
    power_sum: float = 0.0
    power_sum_low: float = 0.0
    scale: float = 1.0
    maximum: float = 0.0
    nonfinite: int = 0
    nan: int = 0
    fingerprint: int = 0

    def pack(self) -> bytes:
        """Little-endian, in units of 8 bytes."""
        numbers = (self.power_sum, self.power_sum_low, self.scale, self.maximum)
        return ROW.pack(self.stamp, *numbers, self.nonfinite, self.nan, self.fingerprint)


ABSENT = Row(stamp=0)


def row_of(values: np.ndarray[Any, Any] | None, p: float, stamp: int, *, fingerprint: bool = False) -> Row:
    """The exact statistics; divided by the maximum where plain powers leave the doubles or lose digits in them."""
    if values is None:
        return ABSENT
    flat = values.reshape(-1)
    finite = np.abs(flat[np.isfinite(flat)])
    maximum = float(finite.max()) if finite.size else 0.0
    high, low, scale = 0.0, 0.0, 1.0
    if math.isfinite(p) and maximum > 0:
        total = power_sum(finite.tolist(), p)
        if not 1e-250 < total < 1e300:
            scale = maximum
            total = power_sum(finite.tolist(), p, scale)
        high, low = halves(total)
    return Row(
        stamp=stamp,
        power_sum=high,
        power_sum_low=low,
        scale=scale,
        maximum=maximum,
        nonfinite=int(flat.size - finite.size),
        nan=int(np.isnan(flat).sum()),
        fingerprint=(zlib.crc32(np.ascontiguousarray(flat).tobytes()) or 1) if fingerprint else 0,
    )
