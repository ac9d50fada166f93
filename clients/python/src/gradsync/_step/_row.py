"""What a rank says about one gradient that its framework reduced: one 64-byte row of its table (docs/adr/0008)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["ABSENT", "NOT_TAKEN", "PLAIN_SUMS", "ROW_BYTES", "Row", "leaves_range", "scale_of"]

ROW = struct.Struct("<Q4d3Q")
ROW_BYTES = ROW.size
ABSENT = bytes(ROW_BYTES)  # stamp 0: no gradient in this step
NOT_TAKEN = -1.0  # a maximum that nothing depends on
PLAIN_SUMS = (1e-250, 1e300)  # sums of plain powers outside have lost digits, or will
_EXACT_POWERS = 64.0  # powers of numbers below 2; their sums stay in the range of doubles


def leaves_range(power_sum: float, maximum: float) -> bool:
    """Whether the values have to be divided by `scale_of` the largest before their powers are summed."""
    return maximum > 0 and not PLAIN_SUMS[0] < power_sum < PLAIN_SUMS[1]


def scale_of(maximum: float, p: float) -> float:
    """A divisor that makes the largest value about 1: a power of two, which changes no digit, or for large p itself."""
    return math.ldexp(1.0, math.frexp(maximum)[1] - 1) if p <= _EXACT_POWERS else maximum


@dataclass(frozen=True, slots=True)
class Row:
    """Statistics of a gradient: Σ(|g| / scale)^p over its finite values as `power_sum + power_sum_low`, and the rest.

    `maximum` is the largest finite |g|, or NOT_TAKEN where the sum says enough; `nan` of the `nonfinite` values are
    NaN. `fingerprint` is of the local bytes, any function of them that all ranks share; 0: not taken.
    """

    power_sum: float
    power_sum_low: float = 0.0
    scale: float = 1.0
    maximum: float = 0.0
    nonfinite: int = 0
    nan: int = 0
    fingerprint: int = 0

    @classmethod
    def of(cls, values: Iterable[float], norm_type: float = 2.0, fingerprint: int = 0) -> Row:
        """The exact statistics of a few values; for many, compute them where they are."""
        given = [float(value) for value in values]
        finite = [abs(value) for value in given if math.isfinite(value)]
        high, low, scale, maximum = 0.0, 0.0, 1.0, max(finite, default=0.0)
        if not math.isinf(norm_type) and maximum > 0:
            try:
                high, low = _power_sum(finite, norm_type)
            except OverflowError:
                high = math.inf
            if leaves_range(high, maximum):
                scale = scale_of(maximum, norm_type)
                high, low = _power_sum([value / scale for value in finite], norm_type)
        nan = sum(map(math.isnan, given))
        return cls(high, low, scale, maximum, len(given) - len(finite), nan, fingerprint)

    def pack(self, stamp: int) -> bytes:
        """The 64 bytes, little-endian."""
        sums = (self.power_sum, self.power_sum_low, self.scale, self.maximum)
        return ROW.pack(stamp, *sums, self.nonfinite, self.nan, self.fingerprint)


def _power_sum(values: list[float], p: float) -> tuple[float, float]:
    """Sums powers: with exact fractions for whole p, else with powers that are rounded one by one."""
    if p in (1.0, 2.0):
        total = sum((Fraction(value) ** int(p) for value in values), Fraction(0))
        high = float(total)
        return high, float(total - Fraction(high))
    return math.fsum(value**p for value in values), 0.0
