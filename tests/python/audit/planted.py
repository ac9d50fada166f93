"""Worlds as ranks of an audit would write them, and norms with a mistake, made without the audit's own sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from reference.declare import declarations, to_api
from reference.expected import answer
from reference.tables import local_values
from reference.world import Logical, only, replicate, shard
from reference.world import World as Reference

from gradsync._audit._findings import Call, RankFindings, Step, Stepped
from gradsync._audit._node import judge_node
from gradsync._audit._verdict import OurStep, Verdict, judge
from gradsync._audit._world import World
from gradsync._step._row import Row

STEPS = 2
Norms = Callable[["Planted", int, int], float]  # (world, step, rank) → what that rank's script clips by


class Planted:
    """A world of `reference` in several steps: other gradients in each."""

    def __init__(self, meshes: Mapping[str, Mapping[str, int]], tensors: Sequence[Logical], p: float = 2.0) -> None:
        self.steps = []
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            made: dict[str, Any] = {}
            for tensor in tensors:
                dtype = getattr(torch, tensor.dtype)
                values = torch.randn(tensor.shape, generator=generator).to(dtype).double().numpy()
                made[tensor.name] = made.setdefault(tensor.tied, values) if tensor.tied else values
            values = tuple(made[tensor.name] for tensor in tensors)
            self.steps.append(
                Reference(meshes=meshes, tensors=tuple(tensors), values=values, norm_type=p, max_norm={}, mode="torch")
            )
        self.p = p
        self.size = math.prod(next(iter(meshes.values())).values())

    def power(self, step: int, rank: int, name: str) -> float:
        """The sum of |x|^p over what this rank holds of a tensor; 0 where it holds nothing."""
        world = self.steps[step]
        names = [declared.name for declared in declarations(world)[rank]]
        if name not in names:
            return 0.0
        part = local_values(world, rank)[names.index(name)]
        return math.fsum(abs(value) ** self.p for value in part.reshape(-1).tolist())

    def whole(self, step: int, *names: str) -> float:
        """The sum of powers of whole tensors."""
        world = self.steps[step]
        chosen = [v for t, v in zip(world.tensors, world.values, strict=True) if t.name in names]
        return math.fsum(abs(value) ** self.p for values in chosen for value in values.reshape(-1).tolist())

    def root(self, power: float) -> float:
        return power ** (1 / self.p)

    def judge(
        self,
        norms: Norms,
        *,
        dtype: str = "float32",
        calls: Callable[[int, int, float], list[Call]] | None = None,
        stepped: Sequence[Stepped] = (),
        row: Callable[[int, Row], Row] | None = None,
        ranks: Sequence[int] | None = None,
        **options: Any,
    ) -> Verdict:
        here = range(self.size) if ranks is None else ranks
        world = World({rank: self._rank(rank, norms, dtype, calls, stepped, row) for rank in here})
        if ranks is not None:
            return judge_node(world, STEPS, None, [])
        ours = [OurStep(answer(step).norm, {}) for step in self.steps]
        return judge(world, ours, **options)

    def _rank(self, rank: int, norms: Norms, dtype: str, calls: Any, stepped: Any, changed: Any) -> RankFindings:
        steps = []
        for number, world in enumerate(self.steps):
            parts = local_values(world, rank)
            rows = [None if part is None else Row.of(part.reshape(-1).tolist(), self.p, 1) for part in parts]
            if changed is not None:
                rows = [None if row is None else changed(number, row) for number, row in enumerate(rows)]
            held = [tensor.dtype for tensor in declarations(world)[rank]]
            own = [None if v is None else own_norm(v, d, self.p) for v, d in zip(parts, held, strict=True)]
            norm = norms(self, number, rank)
            seen = [Call("clip", self.p, norm, dtype)] if calls is None else calls(number, rank, norm)
            steps.append(Step(rows, own, seen, stepped))
        tensors = [to_api(tensor) for tensor in declarations(self.steps[0])[rank]]
        return RankFindings(rank, self.size, self.steps[0].meshes, tensors, self.p, steps=steps)


def own_norm(values: Any, dtype: str, p: float) -> float:
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    return float(torch.linalg.vector_norm(tensor, p)) if tensor.numel() else 0.0


def kinds(verdict: Verdict) -> list[tuple[str, str | None]]:
    """The causes of the first line."""
    return [(cause.kind, cause.axis) for cause in verdict.lines[0].causes]


__all__ = ["Logical", "Norms", "Planted", "kinds", "only", "replicate", "shard"]
