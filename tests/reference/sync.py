"""Sync worked out twice: stage by stage in float64, as collectives do it, and in one sum of float32, as is promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .cut import local_indices, local_shape
from .expected import partition
from .sync_world import (
    Array,
    SyncWorld,
    after_sync,
    divisor,
    groups,
    input_of,
    stages,
    tied_with,
    wide_axes,
)
from .world import TORCH, Logical, coordinates, flat_index, flat_size, held, holders, rounded

Parts = list[list[Array | None]]
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(slots=True)
class Piece:
    """What a rank holds on the way: values, magnitudes Σ|x| for error bounds, and the logical indices by dim."""

    values: Array
    sizes: Array
    indices: list[torch.Tensor]


def staged(sync: SyncWorld, index: int) -> dict[int, Piece]:
    """By rank, after the last stage, the sum over tied copies and the division; nothing is rounded."""
    pieces = {}
    for i in tied_with(sync.world, index):
        pieces[i] = start(sync, i)
        for rule in stages(sync, sync.world.tensors[i]):
            mesh_name = sync.world.tensors[i].mesh
            mesh = sync.world.meshes[mesh_name]
            pieces[i] = {
                rank: piece
                for group in partition(sync.world, mesh_name, wide_axes(mesh, rule))
                for rank, piece in collective(sync, rule.axes, rule.to, mesh_name, group, pieces[i]).items()
            }
    divided = divisor(sync, sync.world.tensors[index])
    found = {}
    for rank, piece in pieces[index].items():
        twins = [pieces[i][twin] for i in pieces for twin in pieces[i] if same_part(sync, index, rank, i, twin)]
        values, sizes = sum(twin.values for twin in twins), sum(twin.sizes for twin in twins)
        found[rank] = Piece(np.asarray(values / divided), np.asarray(sizes / divided), piece.indices)
    return found


def start(sync: SyncWorld, index: int) -> dict[int, Piece]:
    world, tensor = sync.world, sync.world.tensors[index]
    found = {}
    for rank in holders(world, tensor):
        indices = local_indices(world, tensor, rank)
        mine = input_of(sync, index, rank)
        values = mine if mine is not None else np.zeros([len(i) for i in indices])
        found[rank] = Piece(values, np.abs(values), indices)
    return found


def collective(
    sync: SyncWorld, axes: Sequence[str], to: int | None, mesh_name: str, group: Sequence[int], pieces: dict[int, Piece]
) -> dict[int, Piece]:
    """One all-reduce, or one reduce-scatter over dim `to`, among the holders in the group."""
    mesh = sync.world.meshes[mesh_name]
    members = [rank for rank in group if rank in pieces]
    done = {}
    for rank in members:
        values = np.asarray(sum(pieces[r].values for r in members))
        sizes = np.asarray(sum(pieces[r].sizes for r in members))
        indices = list(pieces[rank].indices)
        if to is not None:
            chunks = torch.chunk(torch.arange(len(indices[to])), flat_size(mesh, tuple(axes)))
            number = flat_index(mesh, tuple(axes), rank)
            mine = chunks[number] if number < len(chunks) else torch.arange(0)
            values, sizes = values.take(mine.numpy(), axis=to), sizes.take(mine.numpy(), axis=to)
            indices[to] = indices[to][mine]
        done[rank] = Piece(values, sizes, indices)
    return done


def same_part(sync: SyncWorld, index: int, rank: int, other: int, twin: int) -> bool:
    """Whether `twin` holds of the tied copy `other` what `rank` holds of the tensor: equal places but for `only`."""
    return place(sync, index, rank) == place(sync, other, twin)


def place(sync: SyncWorld, index: int, rank: int) -> tuple[int, ...]:
    tensor = sync.world.tensors[index]
    if tensor.tied is None:
        return (rank,)
    out = {axis for rule in tensor.rules if rule.kind == "only" for axis in rule.axes}
    return tuple(i for axis, i in coordinates(sync.world.meshes[tensor.mesh], rank).items() if axis not in out)


def promised(sync: SyncWorld, index: int) -> dict[int, Array]:
    """By rank, the output to the bit: the group's inputs added by rank in float32 (of float64 in float64), divided
    once, rounded once. Zero where nobody of the group contributes."""
    world, tensor = sync.world, sync.world.tensors[index]
    dtype = np.float64 if tensor.dtype == "float64" else np.float32
    after = after_sync(sync)
    found = {}
    for group in groups(world, index):
        given = [part for rank, i in group if (part := input_of(sync, i, rank)) is not None]
        total = np.zeros(local_shape(world, tensor, group[0][0]), dtype)
        for n, part in enumerate(given):
            total = part.astype(dtype) if n == 0 else total + part.astype(dtype)
        with np.errstate(over="ignore"):
            divided = rounded((total / dtype(divisor(sync, tensor))).astype(np.float64), tensor.dtype)
        for rank, i in group:
            if i == index:
                before, left = (local_indices(w, w.tensors[i], rank) for w in (world, after))
                places = [np.searchsorted(b.numpy(), a.numpy()) for b, a in zip(before, left, strict=True)]
                found[rank] = divided[np.ix_(*places)] if places else divided
    return found


def contributors(sync: SyncWorld, group: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [place for place in group if place not in sync.unused]


def outputs(sync: SyncWorld) -> Parts:
    """By rank, in its own order, as `promised`; None where nobody in the group has a gradient."""
    world = sync.world
    by_tensor = [promised(sync, i) for i in range(len(world.tensors))]
    return [
        [by_tensor[i][rank] if has_gradient(sync, i, rank) else None for i in held(world, rank)]
        for rank in range(world.world_size)
    ]


def has_gradient(sync: SyncWorld, index: int, rank: int) -> bool:
    """Whether anybody contributes to what the rank gets."""
    (group,) = (group for group in groups(sync.world, index) if (rank, index) in group)
    return bool(contributors(sync, group))


def error_bound(tensor: Logical, piece: Piece, summands: int) -> Array:
    """The most by which a stored output differs from float64: sums in float32, one division, one rounding."""
    sums = UNIT_ROUNDOFF["float64" if tensor.dtype == "float64" else "float32"]
    tiny = float(torch.finfo(TORCH[tensor.dtype]).smallest_normal) * 2 * UNIT_ROUNDOFF[tensor.dtype]
    rounding = np.abs(piece.values) * UNIT_ROUNDOFF[tensor.dtype] + tiny
    return np.asarray(piece.sizes * sums * (summands + 1) + rounding * 1.01)
