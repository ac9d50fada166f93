"""What a step must report of gradients that the sidecar reduced: norms as stored, who had nothing, who differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .cut import local_offset, local_shape
from .expected import norm_set
from .findings import Findings, copies_by_box, counted_for, findings
from .sync import Parts, has_gradient
from .sync_world import Array, SyncWorld, after_sync, divisor, inputs, stages, tied_with
from .world import World, held, holders


def masked(sync: SyncWorld, parts: Parts) -> Parts:
    """The outputs of the ranks, None where nobody contributed to them: what is stored there is no gradient."""
    world = sync.world
    return [
        [part if has_gradient(sync, i, rank) else None for i, part in zip(held(world, rank), parts[rank], strict=True)]
        for rank in range(world.world_size)
    ]


def sync_findings(sync: SyncWorld, stored: Parts) -> Findings:
    """The findings in what the ranks hold after sync. `missing` are the ranks whose group had no gradient; they are
    divergence, too, where another group holds the same box and had one. Both name the tensor that is counted of
    tied copies."""
    world, parts = after_sync(sync), masked(sync, stored)
    found = replace(findings(world, as_read(sync, parts)), divergence=findings(world, parts).divergence)
    bare = {world.tensors[i].name: without_but_others(world, i, parts) for i in range(len(world.tensors))}
    return replace(
        found,
        missing=by_counted(world, found.missing),
        divergence=by_counted(world, merged(found.divergence, bare)),
        inputs=nonfinite_inputs(sync),
    )


def as_read(sync: SyncWorld, parts: Parts) -> Parts:
    """What the norm knows of: a copy that is not read counts as the one that is."""
    world = sync.world
    return [
        [
            part if part is None or is_read(sync, i, rank) else part_of(sync, parts, i, counted_rank(sync, i, rank))
            for i, part in zip(held(world, rank), parts[rank], strict=True)
        ]
        for rank in range(world.world_size)
    ]


def part_of(sync: SyncWorld, parts: Parts, index: int, rank: int) -> Array | None:
    return parts[rank][held(sync.world, rank).index(index)]


def without_but_others(world: World, index: int, parts: Parts) -> list[int]:
    """Ranks without a gradient for a box that others have one for."""
    return [
        rank
        for copies in copies_by_box(world, index, parts).values()
        if any(part is not None for part in copies.values())
        for rank, part in copies.items()
        if part is None
    ]


def merged(*several: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    names = dict.fromkeys(name for found in several for name in found)
    ranks = {name: sorted({rank for found in several for rank in found.get(name, ())}) for name in names}
    return {name: found for name, found in ranks.items() if found}


def by_counted(world: World, found: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    counted = set(norm_set(world))
    names = {}
    for i, tensor in enumerate(world.tensors):
        twin = counted_for(world, i, counted)
        names[tensor.name] = tensor.name if twin is None else world.tensors[twin].name
    return merged(*({names[name]: ranks} for name, ranks in found.items()))


def nonfinite_inputs(sync: SyncWorld) -> dict[str, dict[int, int]]:
    """By tensor and rank, what backward left there and the step reads."""
    world = sync.world
    found: dict[str, dict[int, int]] = {}
    for rank, parts in enumerate(inputs(sync)):
        for i, part in zip(held(world, rank), parts, strict=True):
            if not is_read(sync, i, rank):
                continue
            if part is not None and (bad := int(np.count_nonzero(~np.isfinite(part)))):
                found.setdefault(world.tensors[i].name, {})[rank] = bad
    return found


def is_read(sync: SyncWorld, index: int, rank: int) -> bool:
    """A copy that nobody adds to or divides is read where it is counted; on checked steps it is compared with that."""
    tensor = sync.world.tensors[index]
    alone = stages(sync, tensor) == [] and tied_with(sync.world, index) == [index] and divisor(sync, tensor) == 1
    return not alone or rank == counted_rank(sync, index, rank)


def counted_rank(sync: SyncWorld, index: int, rank: int) -> int:
    """The lowest rank with a gradient that holds the same part of a tensor which is not summed."""
    world, tensor = sync.world, sync.world.tensors[index]

    def box(holder: int) -> object:
        return local_offset(world, tensor, holder), local_shape(world, tensor, holder)

    same = [r for r in holders(world, tensor) if box(r) == box(rank)]
    return min((r for r in same if (r, index) not in sync.unused), default=rank)


__all__ = ["by_counted", "masked", "merged", "nonfinite_inputs", "sync_findings"]
