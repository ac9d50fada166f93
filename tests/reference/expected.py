"""What the product must answer for a world whose replicas agree: from the logical gradients alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .exact import norm
from .world import Logical, World, coordinates, flat_size, rounded

Partition = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One packed vector: its level (0 shards, 1 experts, 2 pipeline), groups, and sums with another way to go."""

    level: int
    groups: Partition
    sums: int


@dataclass(frozen=True, slots=True)
class Answer:
    norm: float
    groups: Mapping[str, float]
    layers: Mapping[str, float]
    coefficients: Mapping[str, float]
    counted_elements: int
    absent: tuple[str, ...]
    nonfinite: Mapping[str, int]


def merged_order(world: World) -> list[int]:
    """Tensors by first appearance, ranks ascending."""
    from .world import held

    return list(dict.fromkeys(i for rank in range(world.world_size) for i in held(world, rank)))


def norm_set(world: World) -> list[int]:
    """Every logical gradient once: of tied ones the first."""
    seen: set[str] = set()
    chosen = []
    for i in merged_order(world):
        tied = world.tensors[i].tied
        if tied is None or tied not in seen:
            chosen.append(i)
        if tied is not None:
            seen.add(tied)
    return chosen


def answer(world: World) -> Answer:
    counted = [i for i in norm_set(world) if world.values[i] is not None]

    def of(indices: Iterable[int]) -> float:
        return norm([v for i in indices if (v := world.values[i]) is not None], world.norm_type)

    groups = {g: of(i for i in counted if world.tensors[i].clip_group == g) for g in world.groups}
    return Answer(
        norm=of(counted),
        groups=groups,
        layers={name: of(i for i in counted if world.tensors[i].layer == name) for name in world.layers},
        coefficients={g: coefficient(n, world.max_norm.get(g), world.mode, wide(world, g)) for g, n in groups.items()},
        counted_elements=sum(world.tensors[i].numel for i in counted),
        absent=tuple(world.tensors[i].name for i in merged_order(world) if world.values[i] is None),
        nonfinite={
            t.name: bad
            for t, v in zip(world.tensors, world.values, strict=True)
            if v is not None and (bad := int(np.count_nonzero(~np.isfinite(v))))
        },
    )


def wide(world: World, group: str) -> bool:
    """Whether the group's norm is a float64."""
    return any(t.dtype == "float64" for t in world.tensors if t.clip_group == group)


def coefficient(measured: float, max_norm: float | None, mode: str, is_wide: bool) -> float:
    """Before its rounding in strict mode; torch's own arithmetic in the other."""
    if max_norm is None:
        return 1.0
    if mode == "torch":
        dtype = torch.float64 if is_wide else torch.float32
        quotient = max_norm / (torch.tensor(measured, dtype=dtype) + 1e-6)
        return float(torch.clamp(quotient, max=1.0))
    return max_norm / measured if math.isfinite(measured) and measured > max_norm else 1.0


def clipped(values: np.ndarray[Any, Any], multiplier: float, dtype: str) -> np.ndarray[Any, Any]:
    """Multiplied in float32 (float64 where the gradient is) and rounded once."""
    if dtype == "float64":
        return values * multiplier
    return rounded((values.astype(np.float32) * np.float32(multiplier)).astype(np.float64), dtype)


def partition(world: World, mesh_name: str, axes: Iterable[str]) -> Partition:
    """The ranks that differ on these axes of the mesh only, together."""
    together = set(axes)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world.world_size):
        at = coordinates(world.meshes[mesh_name], rank)
        groups.setdefault(tuple(i for axis, i in at.items() if axis not in together), []).append(rank)
    return tuple(tuple(group) for group in groups.values())


def is_expert(axis: str) -> bool:
    return axis == "ep" or axis.startswith("ep_")


def way(world: World, tensor: Logical) -> tuple[tuple[int, Partition], ...]:
    """The scalar sums that the tensor's statistics travel through, in order."""
    mesh = world.meshes[tensor.mesh]
    levels: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    for rule in tensor.rules:
        everywhere = rule.kind == "only" and len(rule.at) == flat_size(mesh, rule.axes)
        if rule.kind in ("replicate", "partial") or everywhere:
            continue
        for axis in rule.axes:
            pipeline = rule.kind == "only" and axis == "pp"
            levels[2 if pipeline else 1 if rule.kind == "only" or is_expert(axis) else 0].add(axis)
    partitions = [partition(world, tensor.mesh, axes) for axes in levels]
    return tuple((n, groups) for n, groups in enumerate(partitions) if any(len(group) > 1 for group in groups))


def collectives(world: World) -> list[Collective]:
    """By level; within a level in no promised order."""
    sums = {walk[k:] for i in norm_set(world) for walk in (way(world, world.tensors[i]),) for k in range(len(walk))}
    return [
        Collective(level, groups, sum(1 for s in sums if s[0] == (level, groups)))
        for level, groups in sorted({s[0] for s in sums})
    ]
