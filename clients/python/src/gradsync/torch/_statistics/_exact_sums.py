"""Sums of powers of float64 values to the last bit of a double, as an unevaluated sum of two."""

from __future__ import annotations

import torch

from gradsync._step._row import leaves_range, scale_of

__all__ = ["exact_sums"]

_SPLIT = 134217729.0  # 2^27 + 1: Dekker's, cuts a double into halves whose products are exact
_PLAIN = (1e-100, 1e100)  # maxima whose squares, and the rounding errors of these, are doubles


def exact_sums(values: torch.Tensor, p: float, out: torch.Tensor) -> None:
    """Sums powers of finite float64 rows whose maxima are in `out`; for p other than 1 and 2 each power is rounded."""
    maximum, scale = out[3], torch.ones_like(out[3])
    if p == 2:
        # Scaling by a power of two is exact; values too small to square then do not matter beside the largest.
        _, exponent = torch.frexp(maximum)
        plain = (maximum > _PLAIN[0]) & (maximum < _PLAIN[1]) | (maximum == 0)
        scale = torch.where(plain, scale, torch.ldexp(scale, exponent.clamp(-1021, 1023)))
    scaled = values.abs() / scale[:, None]
    if p == 2:
        high, low = _exact_squares(scaled)
    elif p == 1:
        high, low = scaled, torch.zeros_like(scaled)
    else:
        high, low = scaled.pow(p), torch.zeros_like(scaled)
    out[0], out[1] = _sum_pairs(high, low)
    for row in range(len(out[0])):
        total, largest = float(out[0, row]), float(maximum[row])
        if float(scale[row]) == 1.0 and leaves_range(total, largest):
            scale[row] = scale_of(largest, p)
            powers = (values[row] / scale[row]).abs().pow(p)[None]
            one_high, one_low = _sum_pairs(powers, torch.zeros_like(powers))
            out[0, row], out[1, row] = one_high[0], one_low[0]
    out[2] = scale


def _exact_squares(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    squares = values * values
    wide = values * _SPLIT
    upper = wide - (wide - values)
    lower = values - upper
    error = ((upper * upper - squares) + 2 * upper * lower) + lower * lower
    return squares, error


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
