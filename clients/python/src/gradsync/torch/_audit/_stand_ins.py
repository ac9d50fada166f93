"""Parameters whose gradients a framework keeps outside `p.grad`: what takes their place in the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

import gradsync
from gradsync._placements import Placement
from gradsync.errors import GradsyncError

__all__ = ["Framework", "NotSeen", "StandIn", "Stepping"]


class NotSeen(GradsyncError):
    """A framework's step cannot be audited; says which version, and why."""


class StandIn:
    """A part of one parameter, of which a framework holds the gradient.

    Args:
        name: of the parameter.
        shape: of what the ranks of its axes hold together.
        local: the shape of what this rank holds.
        offset: where that begins in each dim; None where the parts lie as torch.chunk cuts them.
        read: gives the gradient as it is now, in units of the loss without its scale; None without one.
        placements: along the axes of the mesh.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        local: tuple[int, ...],
        offset: tuple[int, ...] | None,
        device: torch.device,
        read: Callable[[], torch.Tensor | None],
        placements: Mapping[str, Placement],
    ) -> None:
        self.name, self.shape, self.local, self.offset, self.device = name, shape, local, offset, device
        self._read, self._placements = read, placements

    @property
    def grad(self) -> torch.Tensor | None:
        """As float32: the norm of what is stored is the same."""
        found = self._read()
        if found is not None and found.dtype == torch.float64:
            raise NotSeen(f"'{self.name}': not seen, because its gradient is float64; clip it by torch's function")
        return None if found is None else found.detach().float()

    def numel(self) -> int:
        return torch.Size(self.local).numel()

    def detach(self) -> StandIn:
        return self

    def declared(self, mesh: str) -> gradsync.Tensor:
        return gradsync.Tensor(
            self.name,
            self.shape,
            local_shape=self.local,
            local_offset=self.offset,
            mesh=mesh,
            placements=self._placements,
        )


@dataclass(frozen=True)
class Stepping:
    """What one optimizer of a framework clips and steps.

    `stands_for` says for each tensor (by its id) that the optimizer inside steps which stand-ins it is made of.
    """

    stand_ins: Sequence[StandIn]
    stands_for: Mapping[int, Sequence[StandIn]]


class Framework(Protocol):
    """Reads one framework's optimizers. Everything raises `NotSeen` where they are not as expected."""

    def living(self) -> list[Any]:
        """All optimizers of this process, in the same order on all ranks."""

    def read(self, optimizer: Any, world_size: int) -> Stepping: ...

    def before(self, optimizer: Any) -> None:
        """Called before each step, for what the step changes before its norm can be read."""

    def norm(self, optimizer: Any) -> Any:
        """The norm of the step that was just made, in units of the loss without its scale; None without one."""

    def max_norm(self, optimizer: Any) -> float | None: ...
