"""Sums of powers to the last bit of a double, as an unevaluated sum of two, in memory that does not grow with them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gradsync._step._row import leaves_range, scale_of

from ._fingerprints import in_order

__all__ = ["Columns", "exact_sums", "second_look"]

Columns = Callable[[int, int], torch.Tensor]  #: some columns of a matrix, from one to before another

_SPLIT = 134217729.0  # 2^27 + 1: Dekker's, cuts a double into halves whose products are exact
_PLAIN = (1e-100, 1e100)  # maxima whose squares, and the rounding errors of these, are doubles


def exact_sums(columns: Columns, length: int, p: float, out: torch.Tensor, chunk: int) -> None:
    """Sums powers of finite rows of float64, whose maxima are in `out`; for p other than 1 and 2 each power is rounded.

    Rows have `length` elements, of which `chunk` in all rows together are looked at at a time.
    """
    maximum, scale = out[3], torch.ones_like(out[3])
    if p == 2:
        # Scaling by a power of two is exact; values too small to square then do not matter beside the largest.
        _, exponent = torch.frexp(maximum)
        plain = (maximum > _PLAIN[0]) & (maximum < _PLAIN[1]) | (maximum == 0)
        scale = torch.where(plain, scale, torch.ldexp(scale, exponent.clamp(-1021, 1023)))
    step = max(1, chunk // len(maximum))
    out[0], out[1] = _sum_scaled(columns, length, step, p, scale)
    for row, (total, largest, divisor) in enumerate(torch.stack([out[0], maximum, scale], 1).tolist()):
        if divisor == 1.0 and leaves_range(total, largest):
            scale[row] = scale_of(largest, p)
            one = _row_of(columns, row)
            high, low = _sum_scaled(one, length, max(1, chunk), p, scale[row : row + 1], exact=False)
            out[0, row], out[1, row] = high[0], low[0]
    out[2] = scale


def second_look(gradient: torch.Tensor, p: float, chunk: int) -> torch.Tensor:
    """Sum, low part, scale and maximum of the finite values, how many are not finite, and how many of these are NaN."""
    found = torch.zeros(6, dtype=torch.float64, device=gradient.device)
    found[2] = 1.0
    length = gradient.numel()
    for begin in range(0, length, chunk):
        part = in_order(gradient, begin, min(begin + chunk, length))
        finite = torch.isfinite(part)
        torch.maximum(found[3], torch.where(finite, part, 0).abs_().amax().double(), out=found[3])
        found[4] += finite.logical_not_().sum()
        found[5] += torch.isnan(part).sum()

    def columns(begin: int, end: int) -> torch.Tensor:
        part = in_order(gradient, begin, end)
        return torch.where(torch.isfinite(part), part, 0)[None]

    if math.isfinite(p):
        exact_sums(columns, length, p, found[:4, None], chunk)
    return found


def _row_of(columns: Columns, row: int) -> Columns:
    return lambda begin, end: columns(begin, end)[row : row + 1]


def _sum_scaled(
    columns: Columns, length: int, step: int, p: float, scale: torch.Tensor, exact: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each row's powers of values divided by `scale`; `exact`: also squares are exact."""
    high, low = _powers(columns(0, min(step, length)), scale, p, exact)
    for begin in range(step, length, step):
        more_high, more_low = _powers(columns(begin, min(begin + step, length)), scale, p, exact)
        width = more_high.shape[1]
        _add_pairs(high[:, :width], low[:, :width], more_high, more_low)
    return _sum_pairs(high, low)


def _powers(values: torch.Tensor, scale: torch.Tensor, p: float, exact: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = values.abs().double().div_(scale[:, None])
    if p == 2 and exact and values.dtype is torch.float64:  # squares of narrower numbers have no rounding error
        return _exact_squares(scaled)
    return scaled if p == 1 else scaled.pow_(p), torch.zeros_like(scaled)


def _exact_squares(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Squares and their rounding errors; memory is used again, that of `values` too."""
    squares = values * values
    upper = values * _SPLIT
    upper.sub_(upper - values)
    lower = values.sub_(upper)
    error = (upper * upper).sub_(squares)
    error.add_(upper.mul_(2).mul_(lower)).add_(lower.mul_(lower))
    return squares, error


def _add_pairs(high: torch.Tensor, low: torch.Tensor, more: torch.Tensor, more_low: torch.Tensor) -> None:
    """Adds numbers that are sums of two; uses up the memory of what it adds."""
    total = high + more
    virtual = total - high
    more.sub_(virtual)
    high.sub_(virtual.sub_(total).neg_())
    error = more.add_(high).add_(low).add_(more_low)
    torch.add(total, error, out=high)
    torch.sub(error, total.sub_(high).neg_(), out=low)


def _sum_pairs(high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums every row by halving; each addition keeps its rounding error in the low part."""
    while high.shape[1] > 1:
        half = high.shape[1] // 2
        odd_high, odd_low = high[:, 2 * half :], low[:, 2 * half :]
        a, b = high[:, :half], high[:, half : 2 * half]
        total = a + b
        virtual = total - a
        error = (a - (total - virtual)) + (b - virtual)
        error += low[:, :half] + low[:, half : 2 * half]
        high = total + error
        low = error - (high - total)
        if odd_high.shape[1]:
            high, low = torch.cat([high, odd_high], 1), torch.cat([low, odd_low], 1)
    total = high[:, 0] + low[:, 0]
    return total, low[:, 0] - (total - high[:, 0])
