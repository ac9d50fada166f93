"""The gradients of one moment: what is measured together, and how all of them are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._cpu_sums import CpuSums
from ._kernels import KernelPasses

__all__ = ["Arranged", "Block", "Group", "Placed", "run_of"]


@dataclass(frozen=True, slots=True)
class Group:
    """Gradients of one dtype and device: their indices, also as an index of rows, and as a slice if they are.

    `alike`: they are of one size, and enough to be measured together. Others are measured one by one.
    """

    alike: bool
    members: tuple[int, ...]
    rows: torch.Tensor
    run: slice | None
    cpu_sums: CpuSums | None  # set where `CpuSums` sums them


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
class Placed:
    """Gradients of one device whose passes the library makes; an address of 0 is one that is not there for it."""

    passes: KernelPasses
    rows: torch.Tensor  # their indices
    run: slice | None  # the same, where they follow each other
    addresses: list[int]


@dataclass(frozen=True, slots=True)
class Arranged:
    """The gradients of one moment; empty gradients and None are in no block."""

    gradients: Sequence[torch.Tensor | None]
    fingerprint: bool  #: fingerprints are taken too, so what the library reads is contiguous
    whole: bool  #: none of them is None
    blocks: list[Block]
    placed: list[Placed]

    def multiply(self, coefficient: float) -> None:
        """Multiplies everything that is held, with one rounding; a product with 1 changes no bit."""
        if coefficient == 1.0:
            return
        for one in self.placed:
            one.passes.scale(one.addresses, coefficient)
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for block in self.blocks:
            first = block.views[0]
            groups.setdefault((first.device, first.dtype), []).extend(block.views)
        with torch.no_grad():
            for (device, dtype), views in groups.items():
                factor: Any = _factor(coefficient, device, dtype)
                torch._foreach_mul_(views, factor)

    def zero(self) -> None:
        """Writes zeros, because NaN times 0 is NaN."""
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in self.gradients:
            if gradient is not None:
                groups.setdefault((gradient.device, gradient.dtype), []).append(gradient.detach())
        with torch.no_grad():
            for held in groups.values():
                torch._foreach_zero_(held)


def run_of(members: Sequence[int]) -> slice | None:
    """The indices as a slice, if they follow each other; they are in order."""
    reach = slice(members[0], members[-1] + 1)
    return reach if reach.stop - reach.start == len(members) else None


def _factor(coefficient: float, device: torch.device, dtype: torch.dtype) -> float | torch.Tensor:
    """What torch multiplies by without rounding it to 16 bits first.

    On a CPU that is a tensor of 32 bits or more: a number is rounded to the dtype of 16-bit gradients. On other
    devices it is the number: there the tensor is rounded (torch 2.11, ForeachBinaryOpScalarTensor.cu).
    """
    if device.type != "cpu":
        return coefficient
    return torch.tensor(coefficient, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
