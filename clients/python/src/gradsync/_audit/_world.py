"""All ranks of an audited job: which rank holds which tensors, and which ranks hold parts or copies of one."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradsync._placements import Only, Shard
from gradsync._step._row import Row
from gradsync._tensor import Tensor

from ._findings import RankFindings

__all__ = ["Group", "World", "combined", "group_of", "row_norm"]

Key = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]  # name, and the coordinates that `Only` gives it


def combined(norms: Iterable[float], p: float) -> float:
    """The norm of all vectors together, from the norm of each; powers do not overflow. NaN if one of the norms is."""
    values = [abs(norm) for norm in norms]
    if any(math.isnan(value) for value in values):
        return math.nan
    largest = max(values, default=0.0)
    if math.isinf(p) or largest == 0.0 or math.isinf(largest):
        return largest
    return largest * float(math.fsum((value / largest) ** p for value in values) ** (1 / p))


def row_norm(row: Row | None, p: float) -> float:
    """The norm of a gradient's finite values."""
    if row is None:
        return 0.0
    if math.isinf(p):
        return row.maximum
    return row.scale * float((row.power_sum + row.power_sum_low) ** (1 / p))


@dataclass(frozen=True, order=True)
class Group:
    """Tensors that lie over the ranks alike: powers are summed over `summed` axes, and equal along `copied` ones."""

    mesh: str
    summed: tuple[str, ...]
    copied: tuple[str, ...]
    experts: bool = False

    @property
    def label(self) -> str:
        where = "copied to all ranks" if not self.summed else "over " + " × ".join(self.summed)
        return f"experts, {where}" if self.experts else where


def group_of(tensor: Tensor, mesh: Mapping[str, int]) -> Group:
    """Groups tensors by the axes of more than one rank, in the order of the mesh."""
    summed = set()
    for axes, placement in tensor.placements.items():
        names = (axes,) if isinstance(axes, str) else axes
        if isinstance(placement, (Shard, Only)):
            summed |= {axis for axis in names if mesh[axis] > 1}
    assert tensor.mesh is not None
    large = [axis for axis, size in mesh.items() if size > 1]
    return Group(
        tensor.mesh,
        tuple(axis for axis in large if axis in summed),
        tuple(axis for axis in large if axis not in summed),
        any(axis == "ep" or axis.startswith("ep_") for axis in summed),
    )


class World:
    """The rows of every rank, looked up by the number of the step."""

    def __init__(self, ranks: Mapping[int, RankFindings]) -> None:
        first = next(iter(ranks.values()))
        self.ranks = ranks
        self.size = first.world_size
        self.meshes = first.meshes
        self.p = first.p
        self.groups_of = {
            rank: [group_of(tensor, self.meshes[str(tensor.mesh)]) for tensor in found.tensors]
            for rank, found in ranks.items()
        }
        self.keys_of = {rank: [_key(tensor) for tensor in found.tensors] for rank, found in ranks.items()}
        self.places = {rank: {key: place for place, key in enumerate(keys)} for rank, keys in self.keys_of.items()}
        self.whole = set(ranks) == set(range(self.size))  #: False where ranks of other nodes wrote elsewhere
        calls = (call for found in ranks.values() for step in found.steps for call in step.calls)
        self.multiplies = any(call.kind != "total" for call in calls)
        self.groups = sorted({group for groups in self.groups_of.values() for group in groups})
        self.tied_copies = _tied_copies(ranks, self.keys_of)
        self.axes = list(dict.fromkeys(axis for group in self.groups for axis in (*group.summed, *group.copied)))

    def size_of(self, axis: str) -> int:
        return next(int(mesh[axis]) for mesh in self.meshes.values() if axis in mesh)

    @functools.cache  # noqa: B019
    def span(self, mesh: str, axes: frozenset[str], rank: int) -> tuple[int, ...]:
        """The ranks that differ from this one along these axes alone."""
        sizes = self.meshes[mesh]
        names = list(reversed(list(sizes)))
        strides = dict(zip(names, itertools.accumulate((sizes[name] for name in names), operator.mul, initial=1)))
        found = [rank]
        for axis in (axis for axis in sizes if axis in axes):
            here = rank // strides[axis] % sizes[axis]
            found = [one + (place - here) * strides[axis] for one in found for place in range(sizes[axis])]
        return tuple(sorted(found))


def _key(tensor: Tensor) -> Key:
    only = [
        ("+".join((axes,) if isinstance(axes, str) else axes), placement.at)
        for axes, placement in tensor.placements.items()
        if isinstance(placement, Only)
    ]
    return tensor.name, tuple(sorted(only))


def _tied_copies(ranks: Mapping[int, RankFindings], keys_of: Mapping[int, Sequence[Key]]) -> set[Key]:
    """All but the first of the tensors that were declared as one weight."""
    first: dict[str, Key] = {}
    copies = set()
    for rank, found in ranks.items():
        for tensor, key in zip(found.tensors, keys_of[rank], strict=True):
            if tensor.tied is not None and first.setdefault(tensor.tied, key) != key:
                copies.add(key)
    return copies
