"""A training job before its gradients are reduced: what every rank's backward leaves, and who leaves nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .cut import local_part, splits
from .expected import merged_order
from .world import Axes, Logical, Rule, World, coordinates, flat_index, held, holds, replicate, shard

Array = np.ndarray[Any, Any]
CONVENTIONAL = ("tp", "ep", "cp", "dp_shard", "dp_replicate")


@dataclass(frozen=True, slots=True)
class SyncWorld:
    """`world.values` say nothing here: the gradient of `tensors[i]` is the sum of `summands[i]`, one for each place on
    its partial axes (first index, in the order of the mesh's axes), each of the logical shape and rounded to its dtype.

    `unused` are (rank, tensor): that rank's backward gives it no gradient. `changed[(rank, tensor)]` is what it leaves
    there instead, where something went wrong on that rank alone. `sync_order` is by mesh.
    """

    world: World
    summands: tuple[Array, ...]
    unused: frozenset[tuple[int, int]] = frozenset()
    sync_order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changed: Mapping[tuple[int, int], Array] = field(default_factory=dict)

    def with_unused(self, *places: tuple[int, int]) -> SyncWorld:
        return replace(self, unused=frozenset(places))


def wide_axes(mesh: Mapping[str, int], rule: Rule) -> Axes:
    """Those of more than one rank: the others never count."""
    return tuple(axis for axis in rule.axes if mesh[axis] > 1)


def partial_axes(world: World, tensor: Logical) -> Axes:
    """In mesh order."""
    mesh = world.meshes[tensor.mesh]
    found = {axis for rule in tensor.rules if rule.kind == "partial" for axis in wide_axes(mesh, rule)}
    return tuple(axis for axis in mesh if axis in found)


def summand_count(world: World, tensor: Logical) -> int:
    return math.prod(world.meshes[tensor.mesh][axis] for axis in partial_axes(world, tensor))


def summand_of(sync: SyncWorld, index: int, rank: int) -> Array:
    """The whole gradient of which the rank's backward leaves its part."""
    tensor = sync.world.tensors[index]
    axes = partial_axes(sync.world, tensor)
    here = flat_index(sync.world.meshes[tensor.mesh], axes, rank) if axes else 0
    whole: Array = sync.summands[index][here]
    return whole


def input_of(sync: SyncWorld, index: int, rank: int) -> Array | None:
    """What the rank's backward leaves; None where it is unused."""
    if (rank, index) in sync.unused:
        return None
    if (rank, index) in sync.changed:
        return sync.changed[rank, index]
    return local_part(sync.world, sync.world.tensors[index], rank, summand_of(sync, index, rank))


def inputs(sync: SyncWorld) -> list[list[Array | None]]:
    """By rank, in its own order."""
    world = sync.world
    return [[input_of(sync, i, rank) for i in held(world, rank)] for rank in range(world.world_size)]


def sync_order_of(sync: SyncWorld, mesh_name: str) -> list[str]:
    mesh = sync.world.meshes[mesh_name]
    given = sync.sync_order.get(mesh_name)
    if given:
        return list(given)
    return [a for a in CONVENTIONAL if a in mesh] + [a for a in mesh if a not in CONVENTIONAL]


def stages(sync: SyncWorld, tensor: Logical) -> list[Rule]:
    """The partial rules over more than one rank, first stage first: of several axes the one that comes first counts."""
    mesh, order = sync.world.meshes[tensor.mesh], sync_order_of(sync, tensor.mesh)
    found = [rule for rule in tensor.rules if rule.kind == "partial" and wide_axes(mesh, rule)]
    return sorted(found, key=lambda rule: min(order.index(axis) for axis in wide_axes(mesh, rule)))


def divisor(sync: SyncWorld, tensor: Logical) -> float:
    if tensor.divisor is not None:
        return tensor.divisor
    mesh = sync.world.meshes[tensor.mesh]
    means = [rule for rule in stages(sync, tensor) if rule.op == "mean"]
    return float(math.prod(mesh[axis] for rule in means for axis in rule.axes))


def is_scattered(sync: SyncWorld, tensor: Logical) -> bool:
    return any(rule.to is not None for rule in stages(sync, tensor))


def tied_with(world: World, index: int) -> list[int]:
    """All copies of a weight, itself included, by index."""
    tied = world.tensors[index].tied
    return [index] if tied is None else [i for i, tensor in enumerate(world.tensors) if tensor.tied == tied]


def group_place(world: World, tensor: Logical, rank: int) -> tuple[int, ...]:
    """Equal for the ranks that are summed: the place on all axes that are neither partial nor, of tied copies, only."""
    mesh = world.meshes[tensor.mesh]
    out = set(partial_axes(world, tensor))
    if tensor.tied is not None:
        out |= {axis for rule in tensor.rules if rule.kind == "only" for axis in rule.axes}
    return tuple(place for axis, place in coordinates(mesh, rank).items() if axis not in out)


def groups(world: World, index: int) -> list[list[tuple[int, int]]]:
    """(rank, tensor) of those that are summed, by rank; a group lists the holders of all tied copies.

    On a rank that holds several copies, the one that appears first among the ranks' declarations comes first.
    """
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    copies = sorted(tied_with(world, index), key=merged_order(world).index)
    for rank in range(world.world_size):
        for i in copies:
            tensor = world.tensors[i]
            if holds(world, tensor, rank):
                found.setdefault(group_place(world, tensor, rank), []).append((rank, i))
    return list(found.values())


def after_sync(sync: SyncWorld) -> World:
    """The same world once everything is reduced, for what is known about reduced gradients: every stage has left a
    replica or a shard, and a `partial → shard` cuts after all shards that were there before, in the order of stages."""
    changed = []
    for tensor in sync.world.tensors:
        mesh = sync.world.meshes[tensor.mesh]
        scatters = [rule for rule in stages(sync, tensor) if rule.to is not None]
        order = [axis for rule in [*splits(tensor, mesh), *scatters] for axis in rule.axes]
        rules = tuple(_after(rule) for rule in tensor.rules)
        changed.append(replace(tensor, rules=rules, split_order=tuple(order) or None, divisor=None, offsets=False))
    return replace(sync.world, tensors=tuple(changed))


def _after(rule: Rule) -> Rule:
    if rule.kind != "partial":
        return rule
    return replicate(*rule.axes) if rule.to is None else shard(rule.to, *rule.axes)


def whole_gradient(sync: SyncWorld, index: int) -> Array:
    """The logical gradient after sync in float64, where every rank contributes."""
    total = sum(sync.summands[i].sum(axis=0) for i in tied_with(sync.world, index))
    return np.asarray(total / divisor(sync, sync.world.tensors[index]))
