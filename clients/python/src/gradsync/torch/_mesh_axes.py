"""Device meshes as named axes over all ranks, read from ranks: submeshes and flattened dims need no names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradsync.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    MeshSpec = DeviceMesh | Mapping[str, int]

__all__ = ["JobMesh", "job_meshes"]

_DEFAULT = "mesh"


@dataclass(frozen=True)
class JobMesh:
    """One mesh over all ranks of the job, row-major."""

    name: str
    axes: Mapping[str, int]
    rank: int

    @property
    def at(self) -> dict[str, int]:
        """This rank's coordinate on every axis."""
        return self.coordinates(self.rank)

    def coordinates(self, rank: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for axis in reversed(list(self.axes)):
            rank, found[axis] = divmod(rank, self.axes[axis])
        return {axis: found[axis] for axis in self.axes}

    def axes_of(self, line: Sequence[int]) -> tuple[str, ...] | None:
        """The axes, slowest first, along which these ranks lie one after the other; None: no axes do that."""
        if self.rank not in line or not all(0 <= rank < math.prod(self.axes.values()) for rank in line):
            return None
        places = [self.coordinates(rank) for rank in line]
        varying = [axis for axis in self.axes if len({place[axis] for place in places}) > 1]
        if math.prod(self.axes[axis] for axis in varying) != len(line):
            return None
        for order in itertools.permutations(varying):
            numbers = []
            for place in places:
                number = 0
                for axis in order:
                    number = number * self.axes[axis] + place[axis]
                numbers.append(number)
            if numbers == list(range(len(line))):
                return order
        return None

    def dims_of(self, mesh: DeviceMesh) -> list[tuple[str, ...]] | None:
        """The axes of every dim of a submesh; None: it does not lie along axes of this mesh."""
        dims = [self.axes_of(line) for line in lines(mesh, self.rank)]
        named = [axis for dim in dims if dim is not None for axis in dim]
        if any(dim is None for dim in dims) or len(set(named)) != len(named):
            return None
        return [dim for dim in dims if dim is not None]


def lines(mesh: DeviceMesh, rank: int) -> list[list[int]]:
    """Per dim of a mesh, the ranks that share this rank's other coordinates."""
    place = (mesh.mesh == rank).nonzero().tolist()
    if len(place) != 1:
        raise UsageError(f"{mesh}: rank {rank} is not in it; give the parts that this rank holds")
    found = []
    for dim in range(mesh.mesh.ndim):
        line: tuple[Any, ...] = (*place[0][:dim], slice(None), *place[0][dim + 1 :])
        found.append([int(other) for other in mesh.mesh[line].tolist()])
    return found


def job_meshes(mesh: MeshSpec | Mapping[str, MeshSpec] | None, rank: int, world_size: int) -> list[JobMesh]:
    """The meshes of the job, the first of them for tensors that belong to none."""
    if mesh is None:
        mesh = {"dp": world_size}
    if isinstance(mesh, Mapping) and mesh and not all(hasattr(size, "__index__") for size in mesh.values()):
        return [_job_mesh(name, spec, rank, world_size) for name, spec in mesh.items()]
    return [_job_mesh(_DEFAULT, mesh, rank, world_size)]


def _job_mesh(name: str, spec: Any, rank: int, world_size: int) -> JobMesh:
    if isinstance(spec, Mapping):
        axes = {str(axis): int(size) for axis, size in spec.items()}
        if math.prod(axes.values()) != world_size:
            raise UsageError(
                f"mesh {name!r}: {axes} has {math.prod(axes.values())} ranks, the job {world_size}; give every axis"
            )
        return JobMesh(name, axes, rank)
    ranks = spec.mesh
    if ranks.flatten().tolist() != list(range(world_size)):
        raise UsageError(
            f"mesh {name!r}: it holds ranks {ranks.flatten().tolist()[:8]}…, not 0…{world_size - 1} in order; "
            "give the mesh that init_device_mesh made over all ranks, not a slice of it"
        )
    names = spec.mesh_dim_names or (("dp",) if ranks.ndim == 1 else ())
    if len(names) != ranks.ndim:
        raise UsageError(f"mesh {name!r}: its dimensions have no names; pass mesh_dim_names to init_device_mesh")
    return JobMesh(name, dict(zip(names, (int(size) for size in ranks.shape), strict=True)), rank)
