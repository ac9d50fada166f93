"""Sums of powers on a CPU: large gradients are summed one by one, small ones by as few kernels as possible.

Starting a kernel costs as much as thousands of elements, because the kernels of training push its code out of the
caches.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

__all__ = ["CHUNK", "CpuSums"]

CHUNK = 1 << 18  # elements that are float64 at a time; a cache holds them
_SMALL = 1 << 12
_SHAPE = operator.attrgetter("shape")


class CpuSums:
    """Sums gradients of one dtype narrower than float64, whose sizes stay the same, for p of 1 and 2."""

    def __init__(self, sizes: Sequence[int], p: float, memory: torch.Tensor) -> None:
        """`memory` is scratch for CHUNK float64: new memory for each gradient would cost more than the arithmetic."""
        self._square = p == 2
        self._memory = memory
        self._large = [index for index, size in enumerate(sizes) if size > _SMALL]
        small = sorted((index for index, size in enumerate(sizes) if size <= _SMALL), key=sizes.__getitem__)
        self._batches = [_Batch(batch, [sizes[index] for index in batch], memory) for batch in _batched(small, sizes)]
        self._sums = torch.zeros(len(sizes), dtype=torch.float64)  # the large ones first
        outs = self._sums.unbind()
        self._outs = outs[: len(self._large)]
        ordered = self._large + [index for batch in self._batches for index in batch.members]
        self._to_order = torch.tensor(ordered, dtype=torch.int64).argsort()
        begin = len(self._large)
        for batch in self._batches:
            batch.write_to(self._sums[begin : begin + len(batch.members)])
            begin += len(batch.members)
        self._rooms: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}

    def sums(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """One sum per gradient, in their order; the next call overwrites the result."""
        for index, out in zip(self._large, self._outs, strict=True):
            self._sum(gradients[index], out)
        for batch in self._batches:
            batch.sum([gradients[index] for index in batch.members], self._square)
        return self._sums[self._to_order]

    def _sum(self, gradient: torch.Tensor, out: torch.Tensor) -> None:
        room = self._rooms.get(gradient.shape)
        if room is None:
            if gradient.numel() > CHUNK:
                self._sum_pieces(gradient, out)
                return
            flat = self._memory[: gradient.numel()]
            room = self._rooms[gradient.shape] = flat.view(gradient.shape), flat
        wide, flat = room
        wide.copy_(gradient)
        if self._square:
            torch.dot(flat, flat, out=out)
        else:
            torch.sum(flat.abs_(), 0, out=out)

    def _sum_pieces(self, gradient: torch.Tensor, out: torch.Tensor) -> None:
        pieces = torch.split(gradient.reshape(-1), CHUNK)
        found = torch.empty(len(pieces), dtype=torch.float64)
        for piece, one in zip(pieces, found.unbind(), strict=True):
            self._sum(piece, one)
        torch.sum(found, 0, out=out)


class _Batch:
    """Small gradients that fit into the scratch together, those of one size side by side."""

    def __init__(self, members: list[int], sizes: list[int], memory: torch.Tensor) -> None:
        self.members = members
        self._sizes = sizes
        self._flat = memory[: sum(sizes)]
        self._shapes: list[torch.Size] = []
        self._wide: list[torch.Tensor] = []
        self._sums: list[tuple[torch.Tensor, torch.Tensor]] = []  # a matrix, and where the sums of its rows go

    def write_to(self, out: torch.Tensor) -> None:
        """Says where the sums go, in the order of the members."""
        begin = row = 0
        while row < len(self._sizes):
            size, count = self._sizes[row], self._sizes.count(self._sizes[row])
            matrix = self._flat[begin : begin + size * count].view(count, size)
            self._sums.append((matrix, out[row : row + count]))
            begin, row = begin + size * count, row + count

    def sum(self, gradients: list[torch.Tensor], square: bool) -> None:
        shapes = list(map(_SHAPE, gradients))
        if shapes != self._shapes:
            parts = torch.split(self._flat, self._sizes)
            self._wide = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
            self._shapes = shapes
        torch._foreach_copy_(self._wide, gradients)
        if square:
            torch.mul(self._flat, self._flat, out=self._flat)
        else:
            self._flat.abs_()
        for matrix, out in self._sums:
            torch.sum(matrix, 1, out=out)


def _batched(indices: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    room = 0
    for index in indices:
        if sizes[index] > room:
            batches.append([])
            room = CHUNK
        batches[-1].append(index)
        room -= sizes[index]
    return batches
