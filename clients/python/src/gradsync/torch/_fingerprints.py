"""Fingerprints of gradients that are rows of one matrix: equal for equal bits, wherever they were taken."""

from __future__ import annotations

import functools

import torch

__all__ = ["fingerprints"]

_WIDTH = 1 << 14
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@functools.lru_cache(maxsize=16)
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Odd 64-bit numbers without a pattern: a difference of one element never cancels."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64) * -7046029254386353131
    for shift in (32, 29, 31):
        numbers = (numbers ^ (numbers >> shift)) * -4658895280553007687
    return (numbers | 1).to(device)


def fingerprints(matrix: torch.Tensor) -> torch.Tensor:
    """Of every row, from its bits alone: integer sums are the same in any order, on any device."""
    bits = matrix.contiguous().view(_INTEGERS[matrix.element_size()])
    rows, length = bits.shape
    width = min(length, _WIDTH)
    inner = _weights(width, matrix.device)
    outer = _weights(-(-length // width), matrix.device)
    total = torch.zeros(rows, dtype=torch.int64, device=matrix.device)
    for number, piece in enumerate(torch.split(bits, width, 1)):
        total += (piece.long() * inner[: piece.shape[1]]).sum(1) * outer[number]
    return torch.where(total == 0, 1, total)
