"""Gradients as rows of matrices: over their own memory where they lie at equal distances, else copied for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import _utils

from ._arranged import Block

__all__ = ["matrices", "pieces", "views_of"]

_COPIED = 1 << 14  # elements up to which gradients of one size are copied side by side, where they do not lie so
_LEAST_PER_MATRIX = 8  # with fewer gradients per matrix on average, copying is cheaper
_flatten: Callable[[Sequence[torch.Tensor]], torch.Tensor] = _utils._flatten_dense_tensors


def matrices(block: Block, chunk: int) -> Iterator[torch.Tensor]:
    """The block's gradients as rows. What is copied for it is at most `chunk` elements at a time."""
    if block.joined:
        yield from block.views
    elif block.group.alike and block.views[0].numel() <= _COPIED:
        together = max(1, chunk // block.views[0].numel())
        for begin in range(0, len(block.views), together):
            held = block.views[begin : begin + together]
            yield _flatten(held).view(len(held), -1)
    else:
        for view in block.views:
            yield view.detach().reshape(1, -1)


def pieces(block: Block, chunk: int) -> Iterator[torch.Tensor]:
    """The block's gradients as matrices of at most `chunk` elements, or of one row."""
    for matrix in matrices(block, chunk):
        yield from torch.split(matrix, max(1, chunk // matrix.shape[1]))


def views_of(group: list[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """Matrices over the gradients' own memory, or the gradients where that would save nothing."""
    if len(group) == 1:
        return group, False
    first = group[0].detach()
    count, size = first.numel(), first.element_size()
    if not all(map(torch.Tensor.is_contiguous, group)):
        return group, False
    places = list(map(torch.Tensor.data_ptr, group))
    runs = _runs(places, count * size, size)
    if len(runs) > 1 and len(runs) * _LEAST_PER_MATRIX > len(group):
        return group, False
    views = []
    for start, end, step in runs:
        head = group[start].detach()
        storage = head.untyped_storage()
        if places[end - 1] + count * size > storage.data_ptr() + storage.nbytes():
            return group, False  # Neighbours by chance, in different allocations.
        views.append(head.as_strided((end - start, count), (step // size, 1)))
    return views, True


def _runs(places: list[int], length: int, size: int) -> list[tuple[int, int, int]]:
    """Start, end and distance of addresses that follow each other at equal distances."""
    if len(places) > 1:
        step = places[1] - places[0]
        reach = range(places[0], places[0] + step * len(places), step) if step else ()
        if step >= length and step % size == 0 and places == list(reach):
            return [(0, len(places), step)]
    found, start = [], 0
    while start < len(places):
        end, step = start + 1, length
        if end < len(places) and places[end] - places[start] >= length and (places[end] - places[start]) % size == 0:
            step = places[end] - places[start]
            while end < len(places) and places[end] - places[end - 1] == step:
                end += 1
        found.append((start, end, step))
        start = end
    return found
