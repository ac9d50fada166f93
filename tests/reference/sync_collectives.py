"""The collectives that carry gradients where ranks share no memory, counted by kind, axes and bytes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from .cut import local_indices
from .expected import merged_order
from .sync_world import SyncWorld, divisor, stages, tied_with, wide_axes
from .world import TORCH, flat_size, holders


@dataclass(frozen=True, slots=True, order=True)
class DataCollective:
    """One stage of the tensors that are reduced alike: `bytes` go in, on the rank that holds most of each tensor."""

    kind: str
    mesh: str
    axes: tuple[str, ...]
    dtype: str
    bytes: int


def data_collectives(sync: SyncWorld) -> Counter[DataCollective]:
    """One all-reduce or reduce-scatter for every stage of tensors of equal dtype, holders, stages and divisor.

    A tied copy travels with the tensor that it is summed with.
    """
    world = sync.world
    kinds: dict[object, list[int]] = {}
    order = merged_order(world)
    for i, tensor in enumerate(world.tensors):
        first = min(tied_with(world, i), key=order.index)
        mesh = world.meshes[tensor.mesh]
        walk = tuple((wide_axes(mesh, rule), rule.op, rule.to is None) for rule in stages(sync, tensor))
        holding = tuple(holders(world, world.tensors[first]))
        alike = (tensor.dtype, tensor.mesh, holding, walk, divisor(sync, tensor))
        kinds.setdefault(alike, []).append(i)
    found: Counter[DataCollective] = Counter()
    for members in kinds.values():
        first = world.tensors[members[0]]
        for k, rule in enumerate(stages(sync, first)):
            kind = "all_reduce" if rule.to is None else "reduce_scatter"
            axes = wide_axes(world.meshes[first.mesh], rule)
            size = sum(bytes_before(sync, i, k) for i in members)
            found[DataCollective(kind, first.mesh, axes, first.dtype, size)] += 1
    return found


def bytes_before(sync: SyncWorld, index: int, stage: int) -> int:
    """What the holder with most brings to a stage."""
    tensor = sync.world.tensors[index]
    mesh = sync.world.meshes[tensor.mesh]
    most = 0
    for rank in holders(sync.world, tensor):
        extents = [len(i) for i in local_indices(sync.world, tensor, rank)]
        for rule in stages(sync, tensor)[:stage]:
            if rule.to is not None:
                extents[rule.to] = -(-extents[rule.to] // flat_size(mesh, rule.axes))
        most = max(most, math.prod(extents))
    return most * TORCH[tensor.dtype].itemsize
