"""Finds in this process what a script does not say about its model: the modules and meshes of its parameters."""

from __future__ import annotations

import fnmatch
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import gradsync

from .._dtensor import is_dtensor
from .._mesh_axes import JobMesh
from .._model_parts import pipeline_axis, tied_ids, trainable_parameters
from .._parameter_set import WIRE_DTYPES, gradient_dtype
from .._placed import Experts, Placer, Rule, Sharded
from . import _megatron
from ._fsdp1 import flat_slices

__all__ = ["Declaration", "Hints", "declare", "discover", "held_by", "living_optimizers", "outermost_modules"]


@dataclass(frozen=True)
class Declaration:
    """The parameters of a rank, and how it declares them."""

    meshes: Sequence[JobMesh]
    parameters: Sequence[nn.Parameter]
    tensors: Sequence[gradsync.Tensor]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Hints:
    """What the caller of the audit says about meshes; every field may be left empty."""

    meshes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pp: str | None = None
    experts: Sequence[Experts] = ()
    sharded: Sequence[Sharded] = ()
    tied: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Hints:
        return cls(
            wire.get("meshes") or {},
            wire.get("pp"),
            [Experts(names, held, axes) for names, held, axes in wire.get("ep") or ()],
            [Sharded(names, dim, axis) for names, dim, axis in wire.get("sharded") or ()],
            wire.get("tied") or (),
        )

    def given(self) -> list[str]:
        """The flags that were given."""
        given = {
            "--mesh": self.meshes,
            "--pp": self.pp,
            "--ep": self.experts,
            "--sharded": self.sharded,
            "--tied": self.tied,
        }
        return [flag for flag, value in given.items() if value]

    def overridden(self, declared: bool) -> list[str]:
        """Says that the script's own line wins over the flags, where both say what the model is."""
        flags = self.given()
        if not declared or not flags:
            return []
        return [
            f"{' and '.join(flags)} had no effect: the script says itself what its model is (gradsync.torch.init or "
            "audit), and that wins -> put it into that line, or take the line out"
        ]


def discover(
    given: Sequence[torch.Tensor], hints: Hints, rank: int, world_size: int, others: bool = True
) -> Declaration:
    """Starts from the tensors of a first call; with `others` it adds what optimizers hold, for later calls.

    Raises:
        UsageError: a parameter has no place in the meshes; says which and what to do.
    """
    notes: list[str] = []
    models = _megatron.models_of_mains()
    given = [models.get(id(one), one) for one in given]
    held = [held_by(optimizer) for optimizer in living_optimizers()] if others else []
    optimizers = [[models.get(id(one), one) for one in some] for some in held]
    frozen = {
        id(p) for group in optimizers for p in group if gradient_dtype(p) in WIRE_DTYPES
    }  # until a later step unfreezes them
    roots = outermost_modules(given)
    known = {id(parameter) for root in roots for parameter in root.parameters()} | set(map(id, given))
    given = [*given, *_besides(optimizers, known, world_size)]
    if len({id(p) for p in given} - known) > 0:
        roots = outermost_modules(given)
    named = trainable_parameters(roots, frozen)
    known = {id(parameter) for root in roots for parameter in root.parameters()}
    loose: dict[int, Any] = {id(p): p for p in given if p.is_leaf and p.requires_grad and id(p) not in known}
    if loose:
        notes.append(f"{len(loose)} parameters of rank {rank} are in no module; they are named by their position")
        named |= {f"parameter.{number}": parameter for number, parameter in enumerate(loose.values())}
    found = None if hints.meshes else _megatron.mesh_and_cuts(named, rank) or flat_slices(named, roots, world_size)
    if found is not None:
        cuts = [one for one in found[1] if not any(fnmatch.fnmatchcase(one.names, own.names) for own in hints.sharded)]
        hints = replace(hints, meshes={"mesh": found[0]}, sharded=[*hints.sharded, *cuts])
    meshes = _meshes(list(named.values()), hints, rank, world_size)
    told = {name for names in hints.tied for name in names}
    tied = _megatron.tied_embeddings({name: one for name, one in named.items() if name not in told})
    declaration = declare(named, meshes, hints, notes, tied)
    if not models:
        return declaration
    mains = [getattr(one, "main_param", None) for one in declaration.parameters]
    parameters = [one if main is None else main for one, main in zip(declaration.parameters, mains, strict=True)]
    dtypes = [WIRE_DTYPES[one.dtype] for one in parameters]
    tensors = [replace(one, dtype=dtype) for one, dtype in zip(declaration.tensors, dtypes, strict=True)]
    return replace(declaration, parameters=parameters, tensors=tensors)


def declare(
    named: Mapping[str, nn.Parameter],
    meshes: Sequence[JobMesh],
    hints: Hints,
    notes: Sequence[str] = (),
    tied: Mapping[str, str] | None = None,
) -> Declaration:
    """Places parameters; `hints` says what DTensors do not, and `tied` has ids by name besides."""
    rules: list[Rule] = [*hints.experts, *hints.sharded]
    ids = {**(tied or {}), **tied_ids(hints.tied)}
    placer = Placer(meshes, pipeline_axis(hints.pp, meshes[0]), rules, ids, True)
    placer.check(named)
    tensors = placer.place_all(named, [None] * len(named))
    return Declaration(meshes, list(named.values()), tensors, notes)


def outermost_modules(given: Sequence[torch.Tensor]) -> list[nn.Module]:
    """The fewest outermost modules that hold all these parameters, in the order of the parameters."""
    place = {id(parameter): number for number, parameter in reversed(list(enumerate(given)))}
    # `isinstance` would ask objects for their class, which imports what lazy objects stand for.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    inner = {id(child) for one in modules for child in (one.__dict__.get("_modules") or {}).values()}
    held: list[tuple[nn.Module, set[int]]] = []
    for one in modules:
        if id(one) not in inner and "_parameters" in one.__dict__:
            mine = {place[id(parameter)] for parameter in one.parameters() if id(parameter) in place}
            if mine:
                held.append((one, mine))
    held.sort(key=lambda pair: (-len(pair[1]), min(pair[1]), type(pair[0]).__qualname__))
    chosen: list[tuple[int, nn.Module]] = []
    covered: set[int] = set()
    for one, mine in held:
        if not mine <= covered:
            covered |= mine
            chosen.append((min(mine), one))
    return [one for _, one in sorted(chosen, key=lambda pair: pair[0])]


def living_optimizers() -> list[torch.optim.Optimizer]:
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


def held_by(*optimizers: torch.optim.Optimizer) -> list[torch.Tensor]:
    groups = [group for optimizer in optimizers for group in optimizer.__dict__.get("param_groups", ())]
    return [parameter for group in groups for parameter in group["params"]]


def _besides(optimizers: list[list[torch.Tensor]], known: set[int], world_size: int) -> list[torch.Tensor]:
    """Parameters of other optimizers, in the same order on all ranks; it leaves out sets that look alike."""
    alike: dict[str, list[list[torch.Tensor]]] = {}
    for held in optimizers:
        new = [parameter for parameter in held if id(parameter) not in known]
        if new:
            alike.setdefault(repr([(p.dtype, tuple(p.shape)) for p in new]), []).append(new)
    sure = [some for _, some in sorted(alike.items()) if len(some) == 1 or world_size == 1]
    return [parameter for some in sure for new in some for parameter in new]


def _meshes(parameters: Sequence[nn.Parameter], hints: Hints, rank: int, world_size: int) -> list[JobMesh]:
    """All meshes that cover the whole job, so that ranks agree; those with a pipeline axis come first."""
    if hints.meshes:
        return [JobMesh(name, axes, rank) for name, axes in hints.meshes.items()]
    found: dict[tuple[tuple[str, int], ...], None] = {}
    for mesh in [*_of_parameters(parameters), *(_alive() if world_size > 1 else ())]:
        ranks = _root(mesh).mesh
        if ranks.flatten().tolist() == list(range(world_size)):
            found[tuple(zip(_names(_root(mesh)), map(int, ranks.shape), strict=True))] = None
    if not found:
        return [JobMesh("mesh", {"dp": world_size}, rank)]
    pp = hints.pp or "pp"
    order = sorted(found, key=lambda axes: (pp not in dict(axes), -len(axes), axes))
    return [JobMesh("_".join(name for name, _ in axes), dict(axes), rank) for axes in order]


def _of_parameters(parameters: Sequence[nn.Parameter]) -> list[Any]:
    return [parameter.device_mesh for parameter in parameters if is_dtensor(parameter)]  # type: ignore[attr-defined]


def _alive() -> list[Any]:
    try:
        from torch.distributed.device_mesh import DeviceMesh
    except ImportError:
        return []
    return [one for one in gc.get_objects() if type(one) is DeviceMesh]


def _root(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources  # torch before 2.8

    resources: Any = _mesh_resources
    return resources.get_root_mesh(mesh)


def _names(mesh: Any) -> tuple[str, ...]:
    if mesh.mesh_dim_names:
        return tuple(mesh.mesh_dim_names)
    return ("dp",) if mesh.mesh.ndim == 1 else tuple(f"dim{number}" for number in range(mesh.mesh.ndim))
