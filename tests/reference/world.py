"""A training job as data: meshes over the same ranks, logical gradients, and how every axis treats them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

Axes = tuple[str, ...]
TORCH = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Rule:
    """What one axis, or several as one flattened axis (first named slowest), does to a tensor.

    `op` and `to` are of partial ones: how they are summed, and the dim that is sharded then; None: it is replicated.
    """

    axes: Axes
    kind: Literal["replicate", "shard", "only", "partial"]
    dim: int = 0
    at: tuple[int, ...] = ()
    op: Literal["sum", "mean"] = "sum"
    to: int | None = None


def replicate(*axes: str) -> Rule:
    return Rule(axes, "replicate")


def shard(dim: int, *axes: str) -> Rule:
    return Rule(axes, "shard", dim=dim)


def only(at: int | Sequence[int], *axes: str) -> Rule:
    return Rule(axes, "only", at=(at,) if isinstance(at, int) else tuple(at))


def partial(op: Literal["sum", "mean"], to: int | None, *axes: str) -> Rule:
    return Rule(axes, "partial", op=op, to=to)


@dataclass(frozen=True, slots=True)
class Logical:
    """One logical gradient. `offsets`: its holders declare where their box lies, too."""

    name: str
    shape: tuple[int, ...]
    rules: tuple[Rule, ...]
    mesh: str = "dense"
    dtype: str = "float32"
    split_order: tuple[str, ...] | None = None
    tied: str | None = None
    clip_group: str = "all"
    layer: str | None = None
    offsets: bool = False
    divisor: float | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class World:
    """`values[i]` is the gradient of `tensors[i]` in float64, already rounded to its dtype; None: no gradient.

    Tied copies have equal values. `orders[rank]` permutes what that rank declares.
    """

    meshes: Mapping[str, Mapping[str, int]]
    tensors: tuple[Logical, ...]
    values: tuple[np.ndarray[Any, Any] | None, ...]
    norm_type: float = 2.0
    max_norm: Mapping[str, float | None] = field(default_factory=dict)
    mode: Literal["strict", "torch"] = "strict"
    orders: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return math.prod(next(iter(self.meshes.values())).values())

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(sorted({tensor.clip_group for tensor in self.tensors}))

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(sorted({tensor.layer for tensor in self.tensors if tensor.layer is not None}))

    def with_tensor(self, index: int, **changes: Any) -> World:
        tensors = list(self.tensors)
        tensors[index] = replace(tensors[index], **changes)
        return replace(self, tensors=tuple(tensors))


def rounded(values: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The values as a gradient of this dtype stores them, in float64."""
    array: np.ndarray[Any, Any] = (
        torch.as_tensor(np.asarray(values, dtype=np.float64)).to(TORCH[dtype]).double().numpy()
    )
    return array


def coordinates(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    return dict(zip(mesh, (int(i) for i in np.unravel_index(rank, tuple(mesh.values()))), strict=True))


def flat_size(mesh: Mapping[str, int], axes: Axes) -> int:
    return math.prod(mesh[axis] for axis in axes)


def flat_index(mesh: Mapping[str, int], axes: Axes, rank: int) -> int:
    """The rank's coordinate on these axes taken as one."""
    at = coordinates(mesh, rank)
    return int(np.ravel_multi_index([at[axis] for axis in axes], [mesh[axis] for axis in axes]))


def holds(world: World, tensor: Logical, rank: int) -> bool:
    mesh = world.meshes[tensor.mesh]
    return all(flat_index(mesh, rule.axes, rank) in rule.at for rule in tensor.rules if rule.kind == "only")


def holders(world: World, tensor: Logical) -> list[int]:
    return [rank for rank in range(world.world_size) if holds(world, tensor, rank)]


def held(world: World, rank: int) -> list[int]:
    """The tensors of this rank, in the order in which it declares them."""
    return [i for i in world.orders.get(rank, range(len(world.tensors))) if holds(world, world.tensors[i], rank)]
