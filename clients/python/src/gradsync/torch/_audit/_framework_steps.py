"""The optimizers of this process whose `step()` computes the norm, clips and steps, and what is declared for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gradsync._audit._findings import Call

from .._mesh_axes import JobMesh
from ._deepspeed import DeepSpeed
from ._model import Declaration, Hints, outermost_modules
from ._numbers import norm_of
from ._stand_ins import Framework, StandIn, Stepping

__all__ = ["FrameworkSteps"]


class FrameworkSteps:
    """All such optimizers that are there at the first step; stand-ins take the place of their parameters."""

    def __init__(self, framework: Framework, optimizers: Sequence[Any], world_size: int) -> None:
        self.framework = framework
        self._world_size = world_size
        self._read: dict[int, Stepping] = {id(one): framework.read(one, world_size) for one in optimizers}
        self._optimizers = list(optimizers)  # while they live, their ids are not used again
        self.stand_ins = [one for read in self._read.values() for one in read.stand_ins]
        place = {id(one): index for index, one in enumerate(self.stand_ins)}
        #: For each tensor that an optimizer inside steps, by id, the places of its stand-ins.
        self.stands_for: Mapping[int, tuple[int, ...]] = {
            key: tuple(place[id(one)] for one in own)
            for read in self._read.values()
            for key, own in read.stands_for.items()
        }

    @classmethod
    def of_this_process(cls, world_size: int) -> FrameworkSteps | None:
        """None where no such optimizer is alive.

        Raises:
            NotSeen: one cannot be audited; says why.
        """
        if "deepspeed" not in sys.modules:
            return None
        framework = DeepSpeed(outermost_modules)
        optimizers = framework.living()
        return cls(framework, optimizers, world_size) if optimizers else None

    def declaration(self, rank: int, hints: Hints) -> Declaration:
        mesh = JobMesh("mesh", {"dp": self._world_size}, rank)
        names: dict[str, int] = {}
        tensors = []
        for one in self.stand_ins:
            number = names[one.name] = names.get(one.name, 0) + 1
            one.name += f" ({number})" if number > 1 else ""  # of another model
            tensors.append(one.declared(mesh.name))
        flags = hints.given()
        notes = [f"{' and '.join(flags)} had no effect: DeepSpeed says itself what its ranks hold"] if flags else []
        parameters: Any = self.stand_ins
        return Declaration([mesh], parameters, tensors, notes)

    def of(self, optimizer: Any) -> Sequence[StandIn]:
        """Nothing for an optimizer that came later."""
        read = self._read.get(id(optimizer))
        return () if read is None else read.stand_ins

    def call_of(self, optimizer: Any, rank: int) -> Call:
        """The step that was just made, as a call; where no limit is set it only takes a norm."""
        own = set(map(id, self.of(optimizer)))
        tensors = tuple(index for index, one in enumerate(self.stand_ins) if id(one) in own)
        if not own:
            return Call("clip", 2.0, None, strangers=1, tensors=())
        seen, limit = norm_of(self.framework.norm(optimizer), rank), self.framework.max_norm(optimizer)
        kind = "total" if limit is None else "clip"
        whole = len(tensors) == len(self.stand_ins)
        return Call(kind, 2.0, seen.value, seen.dtype, None if whole else tensors, max_norm=limit)
