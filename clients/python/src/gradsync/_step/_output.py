"""What a rank holds of a tensor after sync, and what memory that takes. Pure; the daemon lays out by the same rules.

A `partial → shard` cuts what the rank held before sync, in the order of the stages and in torch.chunk's sizes: the
first parts are rounded up, later ones are shorter or empty. A tensor that is cut so is *scattered*: on every holder its
output has memory of its own, right behind its input. All others are reduced in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradsync._placements import PartialTo, Shard
from gradsync._tensor import ARENA_ALIGNMENT, ITEM_BYTES, Mesh, Tensor

__all__ = ["Cut", "arena_bytes", "cuts_of", "mesh_of", "output_shape", "padded", "reserved_bytes"]

_CONVENTIONAL_ORDER = ("tp", "ep", "cp", "dp_shard", "dp_replicate")


@dataclass(frozen=True, slots=True)
class Cut:
    """One `partial → shard` over more than one rank; of flattened axes the first named is the slowest."""

    dim: int
    axes: tuple[str, ...]
    parts: int


def mesh_of(tensor: Tensor, meshes: Mapping[str, Mesh]) -> Mesh | None:
    """The tensor's mesh; None where the job has no such mesh, which the daemon refuses."""
    if tensor.mesh is not None:
        return meshes.get(tensor.mesh)
    return next(iter(meshes.values())) if len(meshes) == 1 else None


def cuts_of(tensor: Tensor, mesh: Mesh | None) -> tuple[Cut, ...]:
    """In the order of the stages. What the daemon refuses (an unknown axis, a dim too high) cuts nothing here."""
    cuts = []
    for key, placement in tensor.placements.items():
        if mesh is None or not isinstance(placement, PartialTo) or not isinstance(placement.to, Shard):
            continue
        axes = (key,) if isinstance(key, str) else key
        if placement.to.dim >= len(tensor.held_shape) or any(axis not in mesh.axes for axis in axes):
            continue
        parts = math.prod(mesh.axes[axis] for axis in axes)
        if parts > 1:
            cuts.append(Cut(placement.to.dim, axes, parts))
    if len(cuts) > 1 and mesh is not None:
        order = _stage_order(mesh)
        cuts.sort(key=lambda cut: min(order.index(axis) for axis in cut.axes if axis in order))
    return tuple(cuts)


def output_shape(tensor: Tensor, mesh: Mesh | None, rank: int) -> tuple[int, ...]:
    """What `rank` holds after sync, in elements per dim."""
    shape = list(tensor.held_shape)
    cuts = cuts_of(tensor, mesh)
    if cuts and mesh is not None:
        at = _coordinates(mesh, rank)
        for cut in cuts:
            index = 0
            for axis in cut.axes:
                index = index * mesh.axes[axis] + at[axis]
            extent = shape[cut.dim]
            part = -(-extent // cut.parts)
            shape[cut.dim] = max(0, min(part, extent - part * index))
    return tuple(shape)


def reserved_bytes(tensor: Tensor, mesh: Mesh | None) -> int:
    """What a scattered tensor's output may take: the same on every rank of its axes, so that layouts agree."""
    shape = list(tensor.held_shape)
    cuts = cuts_of(tensor, mesh)
    for cut in cuts:
        shape[cut.dim] = -(-shape[cut.dim] // cut.parts)
    return math.prod(shape) * ITEM_BYTES[tensor.dtype] if cuts else 0


def padded(nbytes: int) -> int:
    """Rounded up to whole 64-byte lines."""
    return -(-nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT


def arena_bytes(tensors: Sequence[Tensor], meshes: Mapping[str, Mesh]) -> int:
    """The bytes that the tensors need: every input and output on cache lines of its own, at least one line."""
    total = sum(padded(tensor.nbytes) + padded(reserved_bytes(tensor, mesh_of(tensor, meshes))) for tensor in tensors)
    return max(total, ARENA_ALIGNMENT)


def _stage_order(mesh: Mesh) -> list[str]:
    """The axes of more than one rank, that of the first stage first."""
    named = mesh.sync_order or _CONVENTIONAL_ORDER
    order = [axis for axis in named if axis in mesh.axes] + [axis for axis in mesh.axes if axis not in named]
    return [axis for axis in order if mesh.axes[axis] > 1]


def _coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    at = {}
    for axis in reversed(list(mesh.axes)):
        rank, at[axis] = divmod(rank, mesh.axes[axis])
    return at
