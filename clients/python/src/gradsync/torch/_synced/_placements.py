"""Along which axes the sidecar reduces each gradient of a module, and along which its framework has done so.

`fully_shard` reduces over its own mesh and hands over gradients that are placed like their parameters. Tensor
parallelism leaves gradients of replicated parameters unreduced along its axis: summands of one value, or the value
itself on every rank, of which one rank then contributes its copy. Parameters that a framework does not place see equal
data along axes that split the model, and different data along all others. Experts on a mesh of their own sum what their
group sent them from all data: they are divided by the ranks of data parallelism of the first mesh, not by the fewer of
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

import gradsync
from gradsync._placements import Axes, PartialTo, Placement
from gradsync.errors import UsageError

from .._digests import weight_digests
from .._dtensor import local_tensor
from .._errors import ModuleRefused
from .._mesh_axes import JobMesh
from .._parameter_set import ParameterSet
from .._placed import Placer
from ._options import AttachOptions

__all__ = ["check_shardable", "copied_gradients", "frozen_tensors", "sync_tensors", "weight_tensors"]

_MODEL_AXES = ("tp", "pp", "ep")


@dataclass(frozen=True)
class _Placed:
    """How the framework places one parameter along axes of more than one rank; empty for a plain parameter."""

    mesh: str
    by_axis: Mapping[str, Placement]
    managed: bool  #: fully_shard hands its gradient over placed like the parameter
    reduced: Collection[str]  #: axes along which fully_shard splits the data, those of one rank too


def sync_tensors(found: ParameterSet, meshes: Sequence[JobMesh], options: AttachOptions) -> list[gradsync.Tensor]:
    """What to declare of every trainable parameter, in their order.

    Raises:
        ModuleRefused: a parameter does not lie on the meshes, or its framework leaves nothing to reduce.
        UsageError: an axis splits the model, and nothing in the module is split along it.
    """
    placer = Placer(meshes, None, (), {}, check_weights=False)
    managed = {id(one.sharded_param): one for one in found.managed_places.values()}  # frozen parameters too
    placed = [_read(placer, managed, *named) for named in zip(found.names, found.parameters, strict=True)]
    _check_shard_axis(meshes, options.shard)
    everything = [*placed, *(_read(placer, managed, *named) for named in found.frozen)]
    _check_model_axes(meshes, everything)
    splitting = {
        (one.mesh, axis)
        for one in everything
        for axis, placement in one.by_axis.items()
        if isinstance(placement, gradsync.Shard) and axis not in one.reduced
    }
    first = meshes[0]
    data_ranks = math.prod(size for axis, size in first.axes.items() if (first.name, axis) not in splitting)
    tensors = []
    for name, parameter, one in zip(found.names, found.parameters, placed, strict=True):
        tensor = placer.place(name, parameter, options.layer(name) if options.layer is not None else None)
        of_experts = options.reduce == "mean" and one.mesh != first.name and not one.managed
        over_data = gradsync.Partial("sum" if of_experts else options.reduce) >> gradsync.Replicate()
        tensors.append(
            replace(
                tensor,
                placements=_cut(_sync_placements(tensor, one, splitting, over_data), options.shard, len(tensor.shape)),
                divisor=float(data_ranks) if of_experts else None,
                clip_group=options.clip_group(name) if options.clip_group is not None else "all",
            )
        )
    _check_work_is_left(found, placed, tensors, meshes)
    return tensors


def _sync_placements(
    tensor: gradsync.Tensor, one: _Placed, splitting: Collection[tuple[str, str]], over_data: PartialTo
) -> dict[Axes, Placement]:
    """The placements of a tensor with what the sidecar reduces: `over_data` along the axes that split the data."""
    placements: dict[Axes, Placement] = {}
    for axes, placement in tensor.placements.items():
        axis = axes if isinstance(axes, str) else axes[0]
        if not isinstance(placement, gradsync.Replicate):
            placements[axes] = placement
        elif axis in one.by_axis:
            placements[axes] = placement if one.managed else gradsync.Partial("sum") >> placement
        else:
            placements[axes] = placement if (one.mesh, axis) in splitting else over_data
    return placements


def _cut(placements: dict[Axes, Placement], axis: str | None, dims: int) -> dict[Axes, Placement]:
    """The same with rows scattered along `axis`; what has no dim cannot be cut."""
    if axis is None or not dims:
        return placements
    return {
        axes: gradsync.Partial(one.op) >> gradsync.Shard(0) if axes == axis and isinstance(one, PartialTo) else one
        for axes, one in placements.items()
    }


def check_shardable(found: ParameterSet) -> None:
    """Raises ModuleRefused for parameters whose rows are not a part of their memory, or that are cut already."""
    for index, (name, parameter) in enumerate(zip(found.names, found.parameters, strict=True)):
        if index in found.placed:
            raise ModuleRefused(
                name, "it is a DTensor", "shard= cuts plain parameters: use fully_shard for this module"
            )
        if parameter.dtype is not found.dtypes[index]:
            raise ModuleRefused(name, f"its grad_dtype is {found.dtypes[index]}", "leave grad_dtype as it is")
        if parameter.numel() and parameter.dim() and parameter.stride(0) * len(parameter) != parameter.numel():
            raise ModuleRefused(
                name, f"its rows are no parts of its memory (strides {parameter.stride()})", "make it contiguous"
            )


def _check_shard_axis(meshes: Sequence[JobMesh], axis: str | None) -> None:
    if axis is not None and (len(meshes) > 1 or axis not in meshes[0].axes):
        raise UsageError(
            f"shard={axis!r}: give an axis of the mesh over all ranks, which has {', '.join(map(repr, meshes[0].axes))}"
            + ("; there are several meshes, and it takes one" if len(meshes) > 1 else "")
        )


def weight_tensors(found: ParameterSet, meshes: Sequence[JobMesh]) -> list[gradsync.Tensor]:
    """How the trainable weights lie on the ranks, which is how their gradients lie after sync."""
    placer = Placer(meshes, None, (), {}, check_weights=False)
    return [placer.place(*named, None) for named in zip(found.names, found.parameters, strict=True)]


def copied_gradients(found: ParameterSet, meshes: Sequence[JobMesh]) -> dict[int, gradsync.Tensor]:
    """Gradients that tensor parallelism leaves equal along its axis, by the index of the parameter, as they are before
    the sidecar sums them: along the other axes every rank has its own."""
    placer = Placer(meshes, None, (), {}, check_weights=False)
    by_name = {mesh.name: mesh for mesh in meshes}
    copied = {}
    for index in sorted(found.placed - found.managed.keys()):
        name, parameter = found.names[index], found.parameters[index]
        mesh_name, own = placer.placements_of(name, parameter)
        if not any(isinstance(placement, gradsync.Replicate) for placement in own.values()):
            continue
        here = {axis for axes in own for axis in axes}
        tensor = placer.place(name, parameter, None)
        placements: dict[Axes, Placement] = {
            axes: placement
            if not here.isdisjoint([axes] if isinstance(axes, str) else axes)
            else gradsync.Only(by_name[mesh_name].at[axes if isinstance(axes, str) else axes[0]])
            for axes, placement in tensor.placements.items()
        }
        copied[index] = replace(tensor, placements=placements)
    return copied


def frozen_tensors(found: ParameterSet, meshes: Sequence[JobMesh]) -> list[gradsync.Tensor]:
    """Declares one element for each frozen weight, which has no gradient, so that its fingerprint is compared."""
    placer = Placer(meshes, None, (), {}, check_weights=False)
    by_name = {mesh.name: mesh for mesh in meshes}
    tensors = []
    digests = weight_digests([local_tensor(parameter) for _, parameter in found.frozen])
    for (name, parameter), digest in zip(found.frozen, digests, strict=True):
        mesh_name, own = placer.placements_of(name, parameter)
        mesh = by_name[mesh_name]
        split = {axis for axes, placement in own.items() if isinstance(placement, gradsync.Shard) for axis in axes}
        tensors.append(
            gradsync.Tensor(
                name,
                (1,),
                mesh=mesh_name,
                placements={
                    axis: gradsync.Only(mesh.at[axis]) if axis in split else gradsync.Replicate() for axis in mesh.axes
                },
                weight_fingerprint=f"weights={digest}",
            )
        )
    return tensors


def _read(placer: Placer, managed: Mapping[int, Any], name: str, parameter: nn.Parameter) -> _Placed:
    mesh_name, placements = placer.placements_of(name, parameter)
    by_axis = {axis: placement for axes, placement in placements.items() for axis in axes}
    by_fully_shard = managed.get(id(parameter))
    if by_fully_shard is None:
        return _Placed(mesh_name, by_axis, False, ())
    along = by_fully_shard.mesh_info.mesh
    mesh = next(mesh for mesh in placer.meshes if mesh.name == mesh_name)
    reduced = {axis for dim in mesh.dims_of(along) or () for axis in dim}
    return _Placed(mesh_name, by_axis, True, reduced.union(along.mesh_dim_names or ()))


def _check_model_axes(meshes: Sequence[JobMesh], placed: Sequence[_Placed]) -> None:
    known = {(one.mesh, axis) for one in placed for axis in one.by_axis}
    for mesh in meshes:
        for axis in _MODEL_AXES:
            if mesh.axes.get(axis, 1) > 1 and (mesh.name, axis) not in known:
                raise UsageError(
                    f"mesh: axis '{axis}' splits the model, and no parameter of this module is a DTensor along it; "
                    "give data-parallel axes only, or declare the tensors by client.attach(…).declare(…)"
                )
    if meshes[0].axes.get("ep", 1) > 1:
        raise UsageError(
            "mesh: its ranks along 'ep' see different data, and parameters that are no experts are averaged over them; "
            "give two meshes, that of all parameters first: mesh={'dense': {'dp': …}, 'experts': {'edp': …, 'ep': …}}"
        )


def _check_work_is_left(
    found: ParameterSet, placed: Sequence[_Placed], tensors: Sequence[gradsync.Tensor], meshes: Sequence[JobMesh]
) -> None:
    if not found.managed or any(isinstance(p, PartialTo) for tensor in tensors for p in tensor.placements.values()):
        return
    sizes = {(mesh.name, axis): size for mesh in meshes for axis, size in mesh.axes.items()}
    own = {(one.mesh, axis) for one in placed for axis in one.reduced}
    # A script for several replicas may run on one of them.
    if math.prod(sizes.values()) == 1 or any(size == 1 and axis not in own for axis, size in sizes.items()):
        return
    raise ModuleRefused(
        found.names[min(found.managed)],
        "fully_shard reduces it over every axis of the mesh, and nothing of this module is left to synchronise",
        "use gradsync.torch.init() (mode clip) beside it, or fully_shard over one axis and attach with the whole mesh",
    )
