"""Measures one rank's gradients on their device: sums of powers in float64, maxima, counts of non-finite values.

Where libgradsync_kernels reads the memory of a device, it measures all gradients there in one pass (_kernels.py). The
rest is torch's: gradients of one dtype, device and size are measured together, as the rows of one matrix, by a few
kernels whatever their number. Where the fast pass has no answer (a value that is not finite, powers outside the range
of doubles), gradients are measured again one by one. Nothing here knows ranks, names or meshes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradsync._step._row import NOT_TAKEN, PLAIN_SUMS

from ._arranged import Arranged, Block, Group, Placed, run_of
from ._cpu_sums import CHUNK, CpuSums
from ._exact_sums import exact_sums, second_look
from ._fingerprints import fingerprint, fingerprints
from ._in_kernels import in_kernels, measure_placed, take_placed, who_measures
from ._kernels import kernel_library
from ._matrices import matrices, pieces, views_of

__all__ = ["Measurer", "rows_in"]

_SMALL = 1 << 16  # elements up to which gradients are measured together
_CPU = "cpu"  # elsewhere each operation is a launch
_CHUNK_ELSEWHERE = 1 << 22  # elements that are float64 at a time there
_EXACT_ELSEWHERE = 1 << 20  # and that are six float64 at a time, where launches cost about as much as the traffic
_WIDENS = "cuda"  # where torch's norms of many tensors widen in registers, at the cost of reading alone
_LEAST_ALIKE = 32  # gradients of one size from which on a matrix costs less than one by one
_SHAPES = 256  # shapes of pieces whose scratch views are kept
_UNFINISHED = -1  # the stamp of rows that are being written


class Measurer:
    """Measures the same gradients every step; sizes, dtypes and devices do not change, the memory does."""

    def __init__(self, gradients: Sequence[tuple[int, torch.dtype, torch.device]], norm_type: float) -> None:
        self._kinds = list(gradients)
        self._p = norm_type
        # Powers of narrow types stay in the range of doubles, so maxima are not needed.
        self._quick = norm_type in (1, 2)
        self._memory = torch.empty(CHUNK, dtype=torch.float64)
        library = kernel_library()
        self._in_kernels = in_kernels(self._kinds, library)
        self.measured_by = who_measures(self._kinds, library, self._in_kernels)  #: in words
        placed = {index for one in self._in_kernels for index in one.members}
        self._others = [index for index in range(len(self._kinds)) if index not in placed]
        self._all = self._grouped(self._others)
        self._some: tuple[list[int], list[Group]] = (
            [],
            [],
        )  # the gradients that were not None last time, and their groups
        self._blank = _blank_rows(len(self._kinds))
        self._scratch: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}  # views of `_memory`

    def arrange(self, gradients: Sequence[torch.Tensor | None], fingerprint: bool = False) -> Arranged:
        """Says what is measured together; valid as long as the gradients stay where they are.

        `fingerprint`: `measure` takes fingerprints too, which are of the elements in their logical order.
        """
        groups, whole = self._all, type(None) not in set(map(type, gradients))
        placed, others = [], self._others
        for one in self._in_kernels:
            here, left = one.place(gradients, fingerprint)
            placed.append(here)
            others = sorted([*others, *left]) if left else others
        if not whole or others is not self._others:
            there = [i for i in others if gradients[i] is not None]
            if there != self._some[0]:
                self._some = there, self._grouped(there)
            groups = self._some[1]
        blocks = []
        for group in groups:
            held: Any = gradients[group.run] if group.run else [gradients[i] for i in group.members]
            blocks.append(Block(group, *(views_of(held) if group.alike else (held, False))))
        return Arranged(gradients, fingerprint, whole, blocks, placed)

    def _grouped(self, indices: Sequence[int]) -> list[Group]:
        """Groups what is measured together and what is not; empty gradients are in no group."""
        alike: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
        for index in indices:
            if self._kinds[index][0]:
                alike.setdefault(self._kinds[index], []).append(index)
        groups: list[Group] = []
        single: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for (numel, dtype, device), members in alike.items():
            if numel <= _SMALL and (device.type != _CPU or len(members) >= _LEAST_ALIKE):
                groups.append(_group(True, members, None))
            else:
                single.setdefault((dtype, device), []).extend(members)
        for (dtype, device), members in single.items():
            members.sort()
            sizes = [self._kinds[index][0] for index in members]
            summed = self._quick and device.type == _CPU and dtype is not torch.float64
            groups.append(_group(False, members, CpuSums(sizes, self._p, self._memory) if summed else None))
        return groups

    def measure(self, arranged: Arranged, stamp: int, table: torch.Tensor) -> None:
        """Fills the rows of 8 int64 per gradient, as docs/adr/0008 has them, with `stamp`, or 0 where there is none.

        The stamps come last, so that a daemon that reads too early (for a `finish` that Ctrl-C ended) finds none.
        """
        table.copy_(self._blank)
        numbers = table.view(torch.float64)
        fingerprint = arranged.fingerprint
        if not fingerprint and self._is_simple(arranged):
            self._measure_simply(arranged, table, numbers)
            table[:, 0] = stamp
            return
        alike: dict[tuple[torch.device, bool], list[Block]] = {}
        for block in arranged.blocks:
            first = block.views[0]
            exact = math.isinf(self._p) or first.dtype is torch.float64
            alike.setdefault((first.device, exact), []).append(block)
        # All kernels are started before the results of the first are waited for.
        found = [self._measure_blocks(blocks, exact, fingerprint) for (_, exact), blocks in alike.items()]
        for one in arranged.placed:
            measure_placed(one, self._p, fingerprint, table)
        plain = True
        for blocks, (sums, prints) in zip(alike.values(), found, strict=True):
            rows, here = _rows_of(blocks), sums.cpu()
            numbers[rows, 1:5] = here.T
            if prints is not None:
                table[rows, 7] = torch.where(prints == 0, 1, prints).cpu()  # 0 says that none was taken
            plain = plain and self._are_plain(here)
        if not plain:
            self._look_again(arranged, table, numbers)
        _put_stamps(arranged, stamp, table)

    @property
    def in_one_pass(self) -> bool:
        """Whether the library measures all gradients, which are of one device."""
        return len(self._in_kernels) == 1 and not self._others

    def prepare_defer(self) -> None:
        """Makes the gate of the one pass.

        Raises:
            RuntimeError: the device cannot wait for memory, in words.
        """
        self._in_kernels[0].gate()

    def defer(self, placed: Placed, fingerprint: bool, norm: torch.Tensor, patience_s: float) -> None:
        """`KernelPasses.defer` of gradients that are measured in one pass."""
        placed.passes.defer(placed.addresses, self._p, fingerprint, norm, patience_s)

    def take(self, arranged: Arranged, stamp: int, table: torch.Tensor) -> None:
        """`measure` after `defer`, when the rows are at the gate."""
        (one,) = arranged.placed
        table.copy_(self._blank)
        take_placed(one, arranged.fingerprint, one.passes.gate().rows, table)
        _put_stamps(arranged, stamp, table)

    def fingerprints(self, arranged: Arranged) -> torch.Tensor:
        """One int64 for each, on the CPU; 0 for None and what is empty. They were arranged with `fingerprint`."""
        assert arranged.fingerprint
        table = torch.zeros(len(self._kinds), 8, dtype=torch.int64)
        for one in arranged.placed:
            measure_placed(one, math.inf, True, table)  # this power asks least of a GPU
        found = table[:, 7].clone()
        by_device: dict[torch.device, list[Block]] = {}
        for block in arranged.blocks:
            by_device.setdefault(block.views[0].device, []).append(block)
        with torch.no_grad():
            for blocks in by_device.values():
                prints = torch.cat([one for block in blocks for one in _prints(block)])
                found[_rows_of(blocks)] = torch.where(prints == 0, 1, prints).cpu()
        return found

    def _is_simple(self, arranged: Arranged) -> bool:
        """Whether `CpuSums` sums all gradients and none is missing, as with most models on a CPU."""
        if not arranged.whole or len(arranged.blocks) != 1:
            return False
        group = arranged.blocks[0].group
        return group.cpu_sums is not None and len(group.members) == len(self._kinds)

    def _measure_simply(self, arranged: Arranged, table: torch.Tensor, numbers: torch.Tensor) -> None:
        (block,) = arranged.blocks
        assert block.group.cpu_sums is not None
        with torch.no_grad():
            sums = block.group.cpu_sums.sums(block.views)
        numbers[:, 1] = sums
        low, high = PLAIN_SUMS
        if all([low < found < high for found in sums.tolist()]):  # noqa: C419 (quicker)
            numbers[:, 4] = NOT_TAKEN
        else:
            numbers[:, 4] = (sums != 0).double().mul_(NOT_TAKEN)
            self._look_again(arranged, table, numbers)

    def _measure_blocks(
        self, blocks: list[Block], exact: bool, fingerprint: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Four rows of float64 (sum, its low part, scale, maximum), and fingerprints, on the gradients' device."""
        device = blocks[0].views[0].device
        quick = self._quick and not exact
        rows = [len(block.group.members) for block in blocks]
        out = torch.zeros(4, sum(rows), dtype=torch.float64, device=device)
        out[2] = 1.0
        prints: list[torch.Tensor] = []
        with torch.no_grad():
            for block, columns in zip(blocks, torch.split(out, rows, 1), strict=True):
                if block.group.cpu_sums is not None:
                    columns[0] = block.group.cpu_sums.sums(block.views)
                elif quick and device.type == _WIDENS:
                    columns[0] = self._powers_of_norms(block)
                else:
                    self._measure_matrices(block, columns, exact)
                if fingerprint:
                    prints += _prints(block)
            if quick:
                out[3] = (out[0] != 0).double().mul_(NOT_TAKEN)  # or 0 where all values are 0
            return out, torch.cat(prints) if fingerprint else None

    def _powers_of_norms(self, block: Block) -> torch.Tensor:
        held = [row for view in block.views for row in view.unbind()] if block.joined else block.views
        norms = torch.stack(torch._foreach_norm(held, self._p, dtype=torch.float64))
        return norms.square_() if self._p == 2 else norms

    def _measure_matrices(self, block: Block, columns: torch.Tensor, exact: bool) -> None:
        begin = 0
        for piece in pieces(block, _chunk(columns.device)):
            part = columns[:, begin : begin + len(piece)]
            begin += len(piece)
            if exact:
                self._measure_exactly(piece, part)
            else:
                self._measure_widened(piece, part)

    def _measure_exactly(self, piece: torch.Tensor, out: torch.Tensor) -> None:
        out[3] = torch.maximum(piece.amax(1), piece.amin(1).neg_())
        if not math.isinf(self._p):
            exact_sums(lambda begin, end: piece[:, begin:end], piece.shape[1], self._p, out, _exact_chunk(piece.device))

    def _measure_widened(self, piece: torch.Tensor, out: torch.Tensor) -> None:
        chunk = _chunk(piece.device)
        if piece.numel() <= chunk:
            self._sum_powers(piece, out[0], out[3])
            return
        parts = torch.split(piece, chunk, 1)  # of one row
        found = torch.zeros(2, len(parts), dtype=torch.float64, device=piece.device)
        for number, part in enumerate(parts):
            self._sum_powers(part, found[0, number : number + 1], found[1, number : number + 1])
        out[0], out[3] = found[0].sum(), found[1].max()

    def _sum_powers(self, part: torch.Tensor, sums: torch.Tensor, maxima: torch.Tensor) -> None:
        wide = self._widened(part)
        powers = torch.square(wide, out=wide) if self._p == 2 else wide.abs_()
        if not self._quick:
            torch.amax(powers, 1, out=maxima)
        torch.sum(powers if self._quick else powers.pow_(self._p), 1, out=sums)

    def _widened(self, part: torch.Tensor) -> torch.Tensor:
        room = self._room(part.shape) if part.device.type == _CPU else None
        return part.double() if room is None else room[0].copy_(part)

    def _room(self, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Scratch of this shape, and the same as a row; None where the scratch is too small.

        On a CPU new memory for every piece would cost more than the arithmetic, because of its page faults.
        """
        room = self._scratch.get(shape)
        if room is None and shape.numel() <= len(self._memory):
            if len(self._scratch) == _SHAPES:
                self._scratch.clear()
            flat = self._memory[: shape.numel()]
            room = self._scratch[shape] = flat.view(shape), flat
        return room

    def _are_plain(self, sums: torch.Tensor) -> bool:
        """Whether the fast pass has the answer for all these gradients; it has none for one of zeros only."""
        least, most = torch.aminmax(sums[3] if math.isinf(self._p) else sums[0])
        return PLAIN_SUMS[0] < float(least) and float(most) < PLAIN_SUMS[1]

    def _look_again(self, arranged: Arranged, table: torch.Tensor, numbers: torch.Tensor) -> None:
        sums, maxima = numbers[:, 1], numbers[:, 4]
        odd = ~(torch.isfinite(sums) & torch.isfinite(maxima))
        if math.isfinite(self._p):
            odd |= (maxima > 0) & ((sums <= PLAIN_SUMS[0]) | (sums >= PLAIN_SUMS[1])) & (numbers[:, 3] == 1.0)
        by_torch = torch.cat([block.group.rows for block in arranged.blocks])
        looked_at = by_torch[odd[by_torch]].tolist()
        found: list[torch.Tensor] = []
        with torch.no_grad():
            for index in looked_at:
                gradient = arranged.gradients[index]
                assert gradient is not None
                found.append(second_look(gradient.detach(), self._p, _exact_chunk(gradient.device)))
        for index, one in zip(looked_at, _on_cpu(found), strict=True):
            numbers[index, 1:5] = one[:4]
            table[index, 5:7] = one[4:].long()


def rows_in(memory: memoryview) -> torch.Tensor:
    """A table that `Measurer.measure` fills, over this memory: one row of 8 int64 for every 64 bytes."""
    return torch.frombuffer(memory, dtype=torch.int64).view(-1, 8) if len(memory) else torch.empty(0, 8).long()


def _put_stamps(arranged: Arranged, stamp: int, table: torch.Tensor) -> None:
    if arranged.whole:
        table[:, 0] = stamp
    else:
        table[:, 0] = torch.tensor([0 if gradient is None else stamp for gradient in arranged.gradients])


def _blank_rows(count: int) -> torch.Tensor:
    rows = torch.zeros(count, 8, dtype=torch.int64)
    rows[:, 0] = _UNFINISHED
    rows.view(torch.float64)[:, 3] = 1.0
    return rows


def _group(alike: bool, members: list[int], cpu_sums: CpuSums | None) -> Group:
    return Group(alike, tuple(members), torch.tensor(members), run_of(members), cpu_sums)


def _rows_of(blocks: list[Block]) -> torch.Tensor | slice:
    first = blocks[0].group
    if len(blocks) == 1:
        return first.run or first.rows
    return torch.cat([block.group.rows for block in blocks])


def _on_cpu(found: list[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Copies them to the host, at once where they lie on one device."""
    return torch.stack(found).cpu() if len({one.device for one in found}) == 1 else [one.cpu() for one in found]


def _chunk(device: torch.device) -> int:
    return CHUNK if device.type == _CPU else _CHUNK_ELSEWHERE


def _exact_chunk(device: torch.device) -> int:
    return CHUNK if device.type == _CPU else _EXACT_ELSEWHERE


def _prints(block: Block) -> list[torch.Tensor]:
    """Fingerprints of the block's gradients, in their order."""
    if block.joined or block.group.alike:
        return list(map(fingerprints, matrices(block, _chunk(block.views[0].device))))
    return list(map(fingerprint, block.views))
