"""How far a norm that others computed may be from the exact one by rounding alone."""

from __future__ import annotations

import math

__all__ = ["NARROW", "rounding"]

NARROW = 0.05  #: relative, and more than rounding to bfloat16 changes a norm


def rounding(bits: int, tensors: int, largest: int) -> float:
    """The relative tolerance for sums in a dtype of so many bits, over tensors of up to `largest` elements."""
    return 2.0**-bits * 8 * (16 + math.sqrt(tensors) + math.log2(max(2, largest)))
