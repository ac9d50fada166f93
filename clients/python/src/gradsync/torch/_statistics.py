"""What one rank finds in its gradients, computed where they live: sums of powers in float64, maxima, non-finite counts.

Gradients of one dtype, device and size are measured together, as the rows of one matrix: a handful of kernels whatever
their number. Only what the fast pass cannot answer (a value that is not finite, powers that leave the doubles) is
looked at again, one gradient at a time. Nothing here knows ranks, names or meshes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import _utils

from gradsync._row import PLAIN_SUMS, leaves_range, scale_of

__all__ = ["Arranged", "Measurer", "rows_in"]

_SMALL = 1 << 16  # elements up to which gradients are copied together
_CHUNK = {"cpu": 1 << 18}  # elements that are float64 at a time: what a cache holds; elsewhere launches cost more
_CHUNK_ELSEWHERE = 1 << 24
_HASH_WIDTH = 1 << 14
_WORTH = 8  # gradients that a matrix has to join on average, lest copying is cheaper
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_flatten: Callable[[Sequence[torch.Tensor]], torch.Tensor] = _utils._flatten_dense_tensors
_SPLIT = 134217729.0  # 2^27 + 1: Dekker's, cuts a double into halves whose products are exact
_PLAIN = (1e-100, 1e100)  # maxima whose squares, and the rounding errors of these, are doubles


@dataclass(frozen=True, slots=True)
class Group:
    """Gradients of one dtype, device and size: their indices, and the same as an index of rows."""

    members: tuple[int, ...]
    rows: slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """A group where it lies now: `views` are over the gradients' own memory.

    `joined`: a view is a matrix of gradients that lie at equal distances (fully_shard cuts them from one allocation);
    otherwise a view is one gradient.
    """

    group: Group
    views: list[torch.Tensor]
    joined: bool


@dataclass(frozen=True, slots=True)
class Arranged:
    """The gradients of one moment, and what is measured together; empty gradients and None are in no block."""

    gradients: Sequence[torch.Tensor | None]
    whole: bool  #: none of them is None
    blocks: list[Block]


class Measurer:
    """Measures the same gradients every step; sizes, dtypes and devices do not change, the memory does."""

    def __init__(self, gradients: Sequence[tuple[int, torch.dtype, torch.device]], norm_type: float) -> None:
        self._kinds = list(gradients)
        self._p = norm_type
        self._all = _grouped(self._kinds, range(len(self._kinds)))
        self._scratch: dict[torch.device, torch.Tensor] = {}

    def arrange(self, gradients: Sequence[torch.Tensor | None]) -> Arranged:
        """What is measured together; only for as long as the gradients stay where they are."""
        groups, whole = self._all, type(None) not in set(map(type, gradients))
        if not whole:
            groups = _grouped(self._kinds, [i for i, gradient in enumerate(gradients) if gradient is not None])
        blocks = []
        for group in groups:
            rows = group.rows
            held: Any = gradients[rows] if isinstance(rows, slice) else [gradients[i] for i in group.members]
            blocks.append(Block(group, *_views(held)))
        return Arranged(gradients, whole, blocks)

    def measure(self, arranged: Arranged, fingerprint: bool, stamp: int, table: torch.Tensor) -> None:
        """Fills the rows of 8 int64 per gradient, as docs/adr/0008 has them, with `stamp`, or 0 where there is none."""
        table.zero_()
        numbers = table.view(torch.float64)
        numbers[:, 3] = 1.0
        found = [self._measure_views(block, fingerprint) for block in arranged.blocks]  # launched; then waited for
        plain = True
        for block, (sums, prints) in zip(arranged.blocks, found, strict=True):
            rows, here = block.group.rows, sums.cpu()
            numbers[rows, 1:5] = here.T
            if prints is not None:
                table[rows, 7] = prints.cpu()
            plain = plain and self._are_plain(here)
        if arranged.whole:
            table[:, 0] = stamp
        else:
            table[:, 0] = torch.tensor([0 if gradient is None else stamp for gradient in arranged.gradients])
        if not plain:
            self._look_again(arranged.gradients, table, numbers)

    def _measure_views(self, block: Block, fingerprint: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Four rows of float64 (sum, its low part, scale, maximum), and fingerprints, on the gradients' device."""
        with torch.no_grad():
            matrices = block.views if block.joined else [_flatten(block.views).view(len(block.views), -1)]
            out = torch.zeros(4, len(block.group.members), dtype=torch.float64, device=matrices[0].device)
            out[2] = 1.0
            as_it_is = math.isinf(self._p) or matrices[0].dtype is torch.float64
            measure = self._measure_as_it_is if as_it_is else self._measure_widened
            for matrix, part in zip(matrices, torch.split(out, list(map(len, matrices)), 1), strict=True):
                rows = _rows_at_a_time(matrix)
                for piece, found in zip(torch.split(matrix, rows), torch.split(part, rows, 1), strict=True):
                    measure(piece, found)
            if not fingerprint:
                return out, None
            return out, torch.cat([_fingerprints(p) for m in matrices for p in torch.split(m, _rows_at_a_time(m))])

    def _measure_as_it_is(self, piece: torch.Tensor, out: torch.Tensor) -> None:
        out[3] = torch.maximum(piece.amax(1), piece.amin(1).neg_())
        if not math.isinf(self._p):
            _exact_sums(piece, self._p, out)

    def _measure_widened(self, piece: torch.Tensor, out: torch.Tensor) -> None:
        sums, maxima = out[0], out[3]
        for part in torch.split(piece, max(1, _chunk(piece) // len(piece)), 1):
            wide = self._widened(part)
            # A square of what was a float32 is exact in float64, and so is its root.
            powers = torch.square(wide, out=wide) if self._p == 2 else wide.abs_()
            torch.maximum(maxima, powers.amax(1), out=maxima)
            sums += (powers if self._p in (1, 2) else powers.pow_(self._p)).sum(1)
        if self._p == 2:
            maxima.sqrt_()

    def _widened(self, part: torch.Tensor) -> torch.Tensor:
        # New memory for every piece would cost more than the arithmetic: its pages come one by one.
        scratch = self._scratch.get(part.device)
        if scratch is None or len(scratch) < part.numel():
            scratch = self._scratch[part.device] = torch.empty(part.numel(), dtype=torch.float64, device=part.device)
        return scratch[: part.numel()].view(part.shape).copy_(part)

    def _are_plain(self, sums: torch.Tensor) -> bool:
        """Whether the fast pass answered for all these gradients; no where one is all zeros."""
        least, most = torch.aminmax(sums[3] if math.isinf(self._p) else sums[0])
        return PLAIN_SUMS[0] < float(least) and float(most) < PLAIN_SUMS[1]

    def _look_again(self, gradients: Sequence[torch.Tensor | None], table: torch.Tensor, numbers: torch.Tensor) -> None:
        sums, maxima = numbers[:, 1], numbers[:, 4]
        odd = ~(torch.isfinite(sums) & torch.isfinite(maxima))
        if math.isfinite(self._p):
            odd |= (maxima > 0) & ((sums <= PLAIN_SUMS[0]) | (sums >= PLAIN_SUMS[1])) & (numbers[:, 3] == 1.0)
        for index in odd.nonzero().flatten().tolist():
            gradient = gradients[index]
            assert gradient is not None
            with torch.no_grad():
                flat = gradient.detach().reshape(1, -1)
                finite = torch.isfinite(flat)
                values = torch.where(finite, flat, 0).double()
                out = torch.zeros(4, 1, dtype=torch.float64, device=flat.device)
                out[2] = 1.0
                out[3] = values.abs().amax(1)
                if math.isfinite(self._p):
                    _exact_sums(values, self._p, out)
                counts = torch.stack([(~finite).sum(), torch.isnan(flat).sum()])
            numbers[index, 1:5] = out.cpu()[:, 0]
            table[index, 5:7] = counts.cpu()


def rows_in(memory: memoryview) -> torch.Tensor:
    """A table that `Measurer.measure` fills, over this memory: one row of 8 int64 for every 64 bytes."""
    return torch.frombuffer(memory, dtype=torch.int64).view(-1, 8) if len(memory) else torch.empty(0, 8).long()


def _grouped(kinds: Sequence[tuple[int, torch.dtype, torch.device]], indices: Sequence[int]) -> list[Group]:
    """Gradients that one matrix holds; empty gradients are in none."""
    groups: dict[object, list[int]] = {}
    for index in indices:
        numel, dtype, device = kinds[index]
        if numel:
            groups.setdefault((numel, dtype, device) if numel <= _SMALL else index, []).append(index)
    return [_group(members) for members in groups.values()]


def _group(members: list[int]) -> Group:
    reach = range(members[0], members[-1] + 1)
    side_by_side = len(reach) == len(members)  # they are in order
    return Group(tuple(members), slice(reach.start, reach.stop) if side_by_side else torch.tensor(members))


def _views(group: list[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """Matrices over the gradients' own memory, or the gradients where that would save nothing."""
    first = group[0].detach()
    count, size = first.numel(), first.element_size()
    if not all(map(torch.Tensor.is_contiguous, group)):
        return group, False
    places = list(map(torch.Tensor.data_ptr, group))
    runs = _runs(places, count * size, size)
    if len(runs) > 1 and len(runs) * _WORTH > len(group):
        return group, False
    views = []
    for start, end, step in runs:
        head = group[start].detach()
        storage = head.untyped_storage()
        if places[end - 1] + count * size > storage.data_ptr() + storage.nbytes():
            return group, False  # neighbours by chance: another allocation
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


def _chunk(matrix: torch.Tensor) -> int:
    return _CHUNK.get(matrix.device.type, _CHUNK_ELSEWHERE)


def _rows_at_a_time(matrix: torch.Tensor) -> int:
    return max(1, _chunk(matrix) // matrix.shape[1])


# Sums to the last bit of a double


def _exact_sums(values: torch.Tensor, p: float, out: torch.Tensor) -> None:
    """Of finite float64 rows whose maxima are in `out`; powers of p other than 1 and 2 are rounded one by one."""
    maximum, scale = out[3], torch.ones_like(out[3])
    if p == 2:
        # A power of two changes no digit; what becomes too small to square is nothing beside the largest.
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
    """Of every row, by halving: each addition keeps what it loses in the low part."""
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


# Fingerprints


@functools.lru_cache(maxsize=16)
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Odd 64-bit numbers without a pattern: a difference of one element never cancels."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64) * -7046029254386353131
    for shift in (32, 29, 31):
        numbers = (numbers ^ (numbers >> shift)) * -4658895280553007687
    return (numbers | 1).to(device)


def _fingerprints(matrix: torch.Tensor) -> torch.Tensor:
    """Of every row, from its bits alone: integer sums are the same in any order, on any device."""
    bits = matrix.contiguous().view(_INTEGERS[matrix.element_size()])
    rows, length = bits.shape
    width = min(length, _HASH_WIDTH)
    inner = _weights(width, matrix.device)
    outer = _weights(-(-length // width), matrix.device)
    total = torch.zeros(rows, dtype=torch.int64, device=matrix.device)
    for number, piece in enumerate(torch.split(bits, width, 1)):
        total += (piece.long() * inner[: piece.shape[1]]).sum(1) * outer[number]
    return torch.where(total == 0, 1, total)
