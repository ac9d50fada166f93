"""Makes the declaration of a gradient from its parameter: logical shape, local shape, a placement for every axis.

DTensors have their placements. The caller says what the other axes of the mesh mean: `pp` separates stages, `Experts`
the experts of an expert axis, `Sharded` the parts of tensors that a script cuts by hand. Along every remaining axis the
parameter is replicated.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from torch import nn

import gradsync
from gradsync._placements import Axes, Placement
from gradsync.errors import UsageError

from ._digests import weight_digests
from ._dtensor import is_dtensor, is_partial, local_tensor
from ._errors import ModuleRefused
from ._mesh_axes import JobMesh
from ._parameter_set import WIRE_DTYPES, gradient_dtype

__all__ = ["Experts", "Placer", "Rule", "Sharded", "in_list"]


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

    @property
    def dim(self) -> int | None:
        """The dim that is cut; None where every rank has whole tensors of its own."""
        return 0 if self.held == "slice" else None


@dataclass(frozen=True)
class Sharded:
    """Plain parameters that a script cuts by hand, as tensor parallelism without DTensors does.

    The parts are equal and lie in the order of the ranks. A tensor that is cut along several axes is matched by several
    of these, that of the first cut first.

    Args:
        names: pattern of their names, as for `fnmatch`: `"*.w1"`.
        dim: the dim that is cut, from 0.
        axis: the axis along which the parts lie, or several taken as one.
        mesh: the mesh that has this axis, where the job has several.

    Raises:
        UsageError: `dim` is not an int of 0 or more.
    """

    names: str
    dim: int
    axis: str | tuple[str, ...]
    mesh: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int) or self.dim < 0:
            raise UsageError(f"Sharded({self.names!r}, dim={self.dim!r}): dim counts from 0; give an int of 0 or more")

    @property
    def axis_names(self) -> tuple[str, ...]:
        return (self.axis,) if isinstance(self.axis, str) else tuple(self.axis)


Rule = Experts | Sharded
_One = TypeVar("_One", Experts, Sharded)


def in_list(rules: _One | Sequence[_One]) -> list[_One]:
    """The rules of an argument that takes one or several."""
    return [rules] if isinstance(rules, (Experts, Sharded)) else list(rules)


@dataclass(frozen=True)
class Placer:
    """Declares parameters; every rank uses an equal `Placer`."""

    meshes: Sequence[JobMesh]
    pp: str | None
    rules: Sequence[Rule]  #: of `Experts` the first that matches counts, of `Sharded` all
    tied: Mapping[str, str]  #: name → id
    check_weights: bool

    def check(self, names: Iterable[str]) -> None:
        """Checks the rules against the names of all parameters that this rank holds.

        Raises:
            UsageError: no mesh has the axes of a rule; or a rule matches no parameter, and no other stage may have one.
        """
        names = list(names)
        staged = any(mesh.axes.get(self.pp, 1) > 1 for mesh in self.meshes if self.pp is not None)
        for rule in self.rules:
            self._mesh_of([rule])
            if not staged and not any(fnmatch.fnmatchcase(name, rule.names) for name in names):
                raise UsageError(
                    f"{_said(rule)}: no parameter of this rank has such a name; they are called "
                    f"{', '.join(repr(name) for name in names[:3])}{', …' if len(names) > 3 else ''}"
                )

    def _rules_of(self, name: str) -> list[Rule]:
        found = [rule for rule in self.rules if fnmatch.fnmatchcase(name, rule.names)]
        experts = [rule for rule in found if isinstance(rule, Experts)]
        return [rule for rule in found if rule not in experts[1:]]

    def place_all(self, named: Mapping[str, nn.Parameter], layers: Sequence[str | None]) -> list[gradsync.Tensor]:
        """Declares parameters, with digests of their weights if these are compared."""
        tensors = [self.place(*one, layer) for one, layer in zip(named.items(), layers, strict=True)]
        if not self.check_weights:
            return tensors
        digests = weight_digests([local_tensor(parameter) for parameter in named.values()])
        return [replace(t, weight_fingerprint=f"weights={d}") for t, d in zip(tensors, digests, strict=True)]

    def place(self, name: str, parameter: nn.Parameter, layer: str | None) -> gradsync.Tensor:
        """Declares one parameter, without a digest."""
        dtype = gradient_dtype(parameter)
        if dtype not in WIRE_DTYPES:
            raise ModuleRefused(
                name, f"its gradient is {dtype}", f"use one of {', '.join(WIRE_DTYPES.values())}, or freeze it"
            )
        rules = self._rules_of(name)
        local = local_tensor(parameter)
        sharding = self._read(name, parameter, rules)
        shape = list(parameter.shape)
        placements: dict[tuple[str, ...], Placement] = dict(sharding.placements)
        order = list(sharding.order)
        mesh = sharding.mesh
        for rule in reversed(rules):
            _apply(rule, name, mesh, placements, shape, order)
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
        )

    def placements_of(self, name: str, parameter: nn.Parameter) -> tuple[str, Mapping[tuple[str, ...], Placement]]:
        """The name of a parameter's mesh, and its own placements along the axes of more than one rank."""
        sharding = self._read(name, parameter, ())
        return sharding.mesh.name, sharding.placements

    def _read(self, name: str, parameter: nn.Parameter, rules: Sequence[Rule]) -> _Sharding:
        if not is_dtensor(parameter):
            return _Sharding(self._mesh_of(rules), {}, [])
        mesh, spec = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        wanted = [m for m in self.meshes if all(set(rule.axis_names) <= set(m.axes) for rule in rules)]
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

    def _mesh_of(self, rules: Sequence[Rule]) -> JobMesh:
        for mesh in self.meshes:
            if all(set(rule.axis_names) <= set(mesh.axes) and rule.mesh in (None, mesh.name) for rule in rules):
                return mesh
        axes = dict.fromkeys(axis for rule in rules for axis in rule.axis_names)
        named = next((f" {rule.mesh!r}" for rule in rules if rule.mesh is not None), "")
        raise UsageError(
            f"{' with '.join(map(_said, rules))}: no mesh{named} has {'axis' if len(axes) == 1 else 'axes'} "
            f"{', '.join(map(repr, axes))}; meshes are "
            f"{', '.join(f'{m.name} {dict(m.axes)}' for m in self.meshes)}"
        )


def _said(rule: Rule) -> str:
    if isinstance(rule, Experts):
        return f"Experts({rule.names!r}, {rule.held!r})"
    return f"Sharded({rule.names!r}, dim={rule.dim}, axis={rule.axis!r})"


def _apply(
    rule: Rule,
    name: str,
    mesh: JobMesh,
    placements: dict[tuple[str, ...], Placement],
    shape: list[int],
    order: list[str],
) -> None:
    axes = rule.axis_names
    if any(_covered(axis, placements) for axis in axes):
        raise ModuleRefused(
            name,
            f"it is placed along {', '.join(axes)} already, as a DTensor or by another rule",
            f"leave it out of {_said(rule)}: DTensors are read",
        )
    size = math.prod(mesh.axes[axis] for axis in axes)
    if size == 1:
        return
    dim = rule.dim
    if dim is not None:
        if dim >= len(shape):
            kind = "a scalar" if not shape else f"of shape {tuple(shape)}"
            own = '; where each rank has experts of its own, Experts(…, held="own")' * isinstance(rule, Experts)
            raise ModuleRefused(name, f"it is {kind}, without a dim {dim} for {_said(rule)}", f"give a dim it has{own}")
        shape[dim] *= size
        placements[axes] = gradsync.Shard(dim)
        order[:0] = axes  # the script cut before anything else sharded it
        return
    if len(axes) > 1:
        raise UsageError(f"{_said(rule)}: one axis; flatten {', '.join(axes)} into one")
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
