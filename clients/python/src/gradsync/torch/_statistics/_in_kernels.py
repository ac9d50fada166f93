"""Which gradients of a device the library measures, and its part of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._arranged import Placed, run_of
from ._gate import Gate
from ._kernels import KERNELS_DTYPES, KernelLibrary

__all__ = ["InKernels", "in_kernels", "measure_placed", "take_placed", "who_measures"]

_MOST_SAID = 64  # what the daemon takes of `measured_by`


class InKernels:
    """Gradients of one device that the library measures, where their memory allows it."""

    def __init__(
        self, library: KernelLibrary, kinds: Sequence[tuple[int, torch.dtype, torch.device]], members: list[int]
    ) -> None:
        self.library = library
        self.members = members
        self._rows, self._run = torch.tensor(members), run_of(members)
        self._passes = library.passes([kinds[index][:2] for index in members], kinds[members[0]][2])

    def gate(self) -> Gate:
        """`KernelPasses.gate`."""
        return self._passes.gate()

    def place(self, gradients: Sequence[torch.Tensor | None], fingerprint: bool) -> tuple[Placed, list[int]]:
        """Where they lie, and the indices of those that torch has to measure.

        A pass reads memory in its order. That is enough for sums, not for a fingerprint, nor where memory has gaps.
        """
        addresses, left = [0] * len(self.members), []
        for place, index in enumerate(self.members):
            gradient = gradients[index]
            if gradient is None:
                continue
            if gradient.is_contiguous() or (not fingerprint and _is_dense(gradient)):
                addresses[place] = gradient.data_ptr()
            else:
                left.append(index)
        return Placed(self._passes, self._rows, self._run, addresses), left


def in_kernels(
    kinds: Sequence[tuple[int, torch.dtype, torch.device]], library: KernelLibrary | None
) -> list[InKernels]:
    """The gradients of these numbers of elements, dtypes and devices that the library measures, by device."""
    if library is None:
        return []
    members: dict[torch.device, list[int]] = {}
    for index, (_, dtype, device) in enumerate(kinds):
        if device.type == library.device_type and dtype in KERNELS_DTYPES and not library.refusal(device):
            members.setdefault(device, []).append(index)
    return [InKernels(library, kinds, held) for held in members.values()]


def who_measures(
    kinds: Sequence[tuple[int, torch.dtype, torch.device]], library: KernelLibrary | None, placed: Sequence[InKernels]
) -> str:
    """What measures most of these gradients, in words that a declaration has room for."""
    if library is not None and placed:
        return str(library)
    devices = dict.fromkeys(
        device for _, _, device in kinds if library is not None and device.type == library.device_type
    )
    refusals = [library.refusal(device) for device in devices if library is not None]
    return f"torch ({refusals[0]})"[:_MOST_SAID] if any(refusals) else "torch"


def measure_placed(one: Placed, p: float, fingerprint: bool, table: torch.Tensor) -> None:
    """Fills rows but for their stamps. The sum of a gradient with values that are not finite is 0: nobody asks it."""
    apart = one.run is None
    rows = torch.zeros(len(one.addresses), 8, dtype=torch.int64) if apart else table[one.run]
    one.passes.measure(one.addresses, p, fingerprint, rows.data_ptr())
    there = _complete(one, fingerprint, rows)
    if apart:
        table[one.rows[there]] = rows[there]


def take_placed(one: Placed, fingerprint: bool, rows: torch.Tensor, table: torch.Tensor) -> None:
    """`measure_placed` with rows that a pass has filled already."""
    there = _complete(one, fingerprint, rows)
    table[one.rows[there], 1:] = rows[there, 1:]


def _complete(one: Placed, fingerprint: bool, rows: torch.Tensor) -> torch.Tensor:
    """Which of the rows are of a gradient; all are made as a table has them."""
    there = torch.tensor(one.addresses) != 0
    if fingerprint:
        prints = rows[:, 7]
        rows[:, 7] = torch.where(there, torch.where(prints == 0, 1, prints), 0)  # 0 says that none was taken
    nonfinite = rows[:, 5] != 0
    if bool(nonfinite.any()):
        rows.view(torch.float64)[nonfinite, 1:3] = 0.0
    return there


def _is_dense(gradient: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(gradient.stride(), gradient.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
