"""The collectives that carry gradients where ranks share no memory, counted by kind, axes and bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .cut import local_indices
from .sync_world import SyncWorld, divisor, stages, wide_axes
from .world import TORCH, flat_size, holders, holds


@dataclass(frozen=True, slots=True, order=True)
class DataCollective:
    """One stage of the tensors that are reduced alike: `bytes` go in, on the rank that brings most."""

    kind: str
    mesh: str
    axes: tuple[str, ...]
    dtype: str
    bytes: int


def data_collectives(sync: SyncWorld) -> Counter[DataCollective]:
    """One all-reduce or reduce-scatter for every stage of tensors of equal dtype, holders, stages and divisor.

    Copies of a tied tensor are summed with nothing else.
    """
    world = sync.world
    kinds: dict[object, list[int]] = {}
    for i, tensor in enumerate(world.tensors):
        mesh = world.meshes[tensor.mesh]
        walk = tuple((wide_axes(mesh, rule), rule.to is None) for rule in stages(sync, tensor))
        holding = tuple(holders(world, tensor)) if tensor.tied is None else tensor.tied
        kinds.setdefault((tensor.dtype, tensor.mesh, holding, walk, divisor(sync, tensor)), []).append(i)
    found: Counter[DataCollective] = Counter()
    for members in kinds.values():
        first = world.tensors[members[0]]
        for k, rule in enumerate(stages(sync, first)):
            kind = "all_reduce" if rule.to is None else "reduce_scatter"
            axes = wide_axes(world.meshes[first.mesh], rule)
            found[DataCollective(kind, first.mesh, axes, first.dtype, bytes_before(sync, members, k))] += 1
    return found


def bytes_before(sync: SyncWorld, members: Sequence[int], stage: int) -> int:
    """What the rank with most brings to a stage."""
    return max(
        sum(elements_before(sync, i, rank, stage) * TORCH[sync.world.tensors[i].dtype].itemsize for i in members)
        for rank in range(sync.world.world_size)
    )


def elements_before(sync: SyncWorld, index: int, rank: int, stage: int) -> int:
    """Every scatter before it has left its largest part."""
    world, tensor = sync.world, sync.world.tensors[index]
    if not holds(world, tensor, rank):
        return 0
    extents = [len(i) for i in local_indices(world, tensor, rank)]
    for rule in stages(sync, tensor)[:stage]:
        if rule.to is not None:
            extents[rule.to] = -(-extents[rule.to] // flat_size(world.meshes[tensor.mesh], rule.axes))
    return math.prod(extents)
