"""Makes the declaration of a gradient from its parameter: logical shape, local shape, a placement for every axis.

DTensors have their placements. The caller says what the other axes of the mesh mean: `pp` separates stages, `Experts`
the experts of an expert axis. Along every remaining axis the parameter is replicated.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

import gradsync
from gradsync._placements import Axes, Placement
from gradsync.errors import UsageError

from ._digests import weight_digest
from ._dtensor import is_dtensor, is_partial, local_tensor
from ._errors import ModuleRefused
from ._mesh_axes import JobMesh
from ._parameter_set import WIRE_DTYPES, gradient_dtype

__all__ = ["Experts", "Placer"]


@dataclass(frozen=True)
class Experts:
    """Parameters that differ along an expert axis without being DTensors on it.

    Args:
        names: pattern of their names, as for `fnmatch`: `"*.experts.*"`.
        held: "slice": each rank holds its experts as a slice of dim 0 of one stacked parameter; "own": each rank holds
            whole experts of its own, under names that other ranks use for theirs.
        axes: the expert axis, or several taken as one.
        mesh: the mesh that has these axes, where the job has several.
    """

    names: str
    held: Literal["slice", "own"]
    axes: str | tuple[str, ...] = "ep"
    mesh: str | None = None

    def __post_init__(self) -> None:
        if self.held not in ("slice", "own"):
            raise UsageError(f"Experts(held={self.held!r}): one of 'slice', 'own'")

    @property
    def axis_names(self) -> tuple[str, ...]:
        return (self.axes,) if isinstance(self.axes, str) else tuple(self.axes)


@dataclass(frozen=True)
class Placer:
    """Declares parameters one by one; every rank uses an equal `Placer`."""

    meshes: Sequence[JobMesh]
    pp: str | None
    experts: Sequence[Experts]
    tied: Mapping[str, str]  #: name → id
    check_weights: bool

    def place(self, name: str, parameter: nn.Parameter, layer: str | None) -> gradsync.Tensor:
        dtype = gradient_dtype(parameter)
        if dtype not in WIRE_DTYPES:
            raise ModuleRefused(
                name, f"its gradient is {dtype}", f"use one of {', '.join(WIRE_DTYPES.values())}, or freeze it"
            )
        rule = next((rule for rule in self.experts if fnmatch.fnmatchcase(name, rule.names)), None)
        local = local_tensor(parameter)
        sharding = self._read(name, parameter, rule)
        shape = list(parameter.shape)
        placements: dict[tuple[str, ...], Placement] = dict(sharding.placements)
        order = list(sharding.order)
        placed = {axis for axes in placements for axis in axes}
        mesh = sharding.mesh
        if rule is not None:
            self._add_experts(name, rule, mesh, placed, placements, shape, order)
        for axis, size in mesh.axes.items():
            if size > 1 and not _covered(axis, placements):
                at_stage = axis == self.pp
                placements[(axis,)] = gradsync.Only(mesh.at[axis]) if at_stage else gradsync.Replicate()
        wire: dict[Axes, Placement] = {axes if len(axes) > 1 else axes[0]: p for axes, p in placements.items()}
        return gradsync.Tensor(
            name,
            tuple(shape),
            local_shape=tuple(local.shape),
            dtype=WIRE_DTYPES[dtype],
            mesh=mesh.name,
            placements=wire,
            tied=self.tied.get(name),
            layer=layer,
            split_order=tuple(order) if _several_splits_of_one_dim(placements) else None,
            weight_fingerprint=f"weights={weight_digest(local)}" if self.check_weights else None,
        )

    def placements_of(self, name: str, parameter: nn.Parameter) -> tuple[str, Mapping[tuple[str, ...], Placement]]:
        """The name of a parameter's mesh, and its own placements along the axes of more than one rank."""
        sharding = self._read(name, parameter, None)
        return sharding.mesh.name, sharding.placements

    def _read(self, name: str, parameter: nn.Parameter, rule: Experts | None) -> _Sharding:
        if not is_dtensor(parameter):
            return _Sharding(self._mesh_of(rule), {}, [])
        mesh, spec = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        wanted = [m for m in self.meshes if rule is None or set(rule.axis_names) <= set(m.axes)]
        names = set(mesh.mesh_dim_names or ())
        # Several meshes may fit the same ranks; one that has the dims' names comes first.
        for candidate in sorted(wanted, key=lambda m: not names <= set(m.axes)):
            dims = candidate.dims_of(mesh)
            if dims is not None:
                return _Sharding(candidate, *_placements(name, mesh, spec, dims))
        raise ModuleRefused(
            name,
            f"its mesh {mesh} does not lie along the axes of {' or '.join(str(dict(m.axes)) for m in self.meshes)}",
            "give mesh=… the mesh over all ranks that it was sliced from, several as a dict",
        )

    def _mesh_of(self, rule: Experts | None) -> JobMesh:
        if rule is None:
            return self.meshes[0]
        for mesh in self.meshes:
            if set(rule.axis_names) <= set(mesh.axes) and rule.mesh in (None, mesh.name):
                return mesh
        raise UsageError(
            f"Experts({rule.names!r}): no mesh{'' if rule.mesh is None else f' {rule.mesh!r}'} has axes "
            f"{', '.join(rule.axis_names)}; meshes are {', '.join(f'{m.name} {dict(m.axes)}' for m in self.meshes)}"
        )

    def _add_experts(
        self,
        name: str,
        rule: Experts,
        mesh: JobMesh,
        placed: set[str],
        placements: dict[tuple[str, ...], Placement],
        shape: list[int],
        order: list[str],
    ) -> None:
        axes = rule.axis_names
        if placed & set(axes):
            raise ModuleRefused(
                name, f"it is a DTensor on {', '.join(axes)} already", "leave it out of Experts: DTensors are read"
            )
        size = math.prod(mesh.axes[axis] for axis in axes)
        if size == 1:
            return
        if rule.held == "slice":
            if not shape:
                raise ModuleRefused(name, "a scalar has no dim 0 to hold experts", 'use Experts(…, held="own")')
            shape[0] *= size
            placements[axes] = gradsync.Shard(0)
            order[:0] = axes  # the slice was cut before anything else sharded it
            return
        if len(axes) > 1:
            raise UsageError(f"Experts({rule.names!r}, held='own'): one axis; flatten {', '.join(axes)} into one")
        placements[axes] = gradsync.Only(mesh.at[axes[0]])


@dataclass(frozen=True)
class _Sharding:
    mesh: JobMesh
    placements: Mapping[tuple[str, ...], Placement]
    order: Sequence[str]  #: the splitting axes, outermost first


def _placements(
    name: str, mesh: Any, spec: Sequence[Any], dims: Sequence[tuple[str, ...]]
) -> tuple[dict[tuple[str, ...], Placement], list[str]]:
    found: dict[tuple[str, ...], Placement] = {}
    splits: dict[int, list[int]] = {}  # tensor dim → mesh dims, outermost first
    for number in reversed(range(len(spec))):
        placement, axes = spec[number], dims[number]
        if is_partial(placement):
            raise ModuleRefused(name, f"its placement is {placement}", "redistribute the parameter to what it holds")
        if not axes:
            continue  # a dim of size 1
        if placement.is_replicate():
            found[axes] = gradsync.Replicate()
            continue
        if not hasattr(placement, "dim"):
            raise ModuleRefused(name, f"its placement {placement} is unknown here", "use Shard, Replicate or both")
        found[axes] = gradsync.Shard(int(placement.dim))
        order = splits.setdefault(int(placement.dim), [])
        order.insert(_inner_of(name, mesh, placement, order), number)
    nested = [dims[number] for order in splits.values() for number in order]
    return dict(reversed(found.items())), [axis for axes in nested for axis in axes]


def _inner_of(name: str, mesh: Any, placement: Any, order: Sequence[int]) -> int:
    """How many of the splits found so far (of dims to the right) come before this one.

    A plain Shard cuts before all dims to its right; a _StridedShard after those whose sizes multiply to its factor.
    """
    factor, before = int(getattr(placement, "split_factor", 1)), 0
    while factor > 1 and before < len(order):
        size = int(mesh.mesh.shape[order[before]])
        if factor % size:
            break
        factor //= size
        before += 1
    if factor > 1:
        raise ModuleRefused(
            name,
            f"the split factor of {placement} is not a product of the mesh's dims {tuple(mesh.mesh.shape)}",
            "shard it by fully_shard and parallelize_module, or declare it with the raw API",
        )
    return before


def _covered(axis: str, placements: Mapping[tuple[str, ...], Placement]) -> bool:
    return any(axis in axes for axes in placements)


def _several_splits_of_one_dim(placements: Mapping[tuple[str, ...], Placement]) -> bool:
    dims = [placement.dim for placement in placements.values() if isinstance(placement, gradsync.Shard)]
    return len(set(dims)) != len(dims)
