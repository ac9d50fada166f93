"""What the optimizer steps with `attach(shard=axis)`: this rank's rows of every parameter, as DTensors (ZeRO-2).

A shard lies in the memory of its whole parameter, so the optimizer writes this rank's rows in place, and has its state
for these alone. Its gradient is what the sidecar scatters, in the arena. After each step of an optimizer torch gathers
the rows of the others. Parameters without a dim, which cannot be cut, are stepped alike on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import Optimizer

from gradsync.errors import UsageError

from .._errors import ParameterChanged
from .._mesh_axes import JobMesh
from .._parameter_set import ParameterSet

if TYPE_CHECKING:
    from gradsync import Grads

__all__ = ["Shards"]

_TOGETHER = 32 << 20  # bytes that one all-gather receives, if no parameter has more


class Shards:
    """The shards of one rank; `parameters` is in the order of the module's."""

    def __init__(self, found: ParameterSet, grads: Grads, mesh: Any, meshes: Sequence[JobMesh], axis: str) -> None:
        self._found = found
        self._mesh = _along(mesh, meshes[0], axis, found.device.type)
        self._place, self._ranks = self._mesh.get_local_rank(), self._mesh.size()
        self.parameters = [self._shard(parameter) for parameter in found.parameters]
        self._gradients = [
            self._placed(
                parameter, grads.output(name).torch().reshape(-1).as_strided(shard._local_tensor.shape, strides)
            )
            for name, parameter, strides, shard in zip(
                found.names, found.parameters, found.strides, self.parameters, strict=True
            )
        ]
        self._index = {id(shard): index for index, shard in enumerate(self.parameters)}
        self._gathered_after: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        found.shard_ids.update(self._index)
        found.known_ids |= found.shard_ids

    def check_memory(self) -> None:
        """Raises ParameterChanged if a parameter does not lie where its shard does any more."""
        for name, parameter, shard in zip(self._found.names, self._found.parameters, self.parameters, strict=True):
            local: Any = shard._local_tensor
            if parameter.untyped_storage().data_ptr() != local.untyped_storage().data_ptr():
                raise ParameterChanged(
                    name,
                    "its memory was exchanged, and the optimizer would step the old one",
                    "move the module before attach(shard=…), and load_state_dict() without assign=True",
                )

    def check(self, optimizer: Optimizer) -> None:
        """Raises UsageError for an optimizer of whole parameters, whose gradients no rank has; the others gather."""
        whole = dict(zip(map(id, self._found.parameters), self._found.names, strict=True))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in whole:
                    raise UsageError(
                        f"{type(optimizer).__name__} holds the whole of '{whole[id(parameter)]}', and with shard= each "
                        "rank has the gradient of its rows: make it of gs.parameters()"
                    )
        if optimizer not in self._gathered_after:
            self._gathered_after.add(optimizer)
            # It stays when this object is closed: the optimizer still steps shards.
            optimizer.register_step_post_hook(lambda optimizer, *_: self.gather(optimizer))

    def commit(self, absent: Collection[int]) -> None:
        """The step is done: shards get what was scattered, the whole parameters lose what they summed up."""
        for index, (parameter, shard) in enumerate(zip(self._found.parameters, self.parameters, strict=True)):
            parameter.grad = None
            shard.grad = None if index in absent else self._gradients[index]

    def drop(self) -> None:
        for shard in self.parameters:
            shard.grad = None

    def gather(self, optimizer: Optimizer) -> None:
        """Brings the rows that other ranks stepped into the parameters of this rank. Collective."""
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        cut = sorted(self._index[id(one)] for one in stepped if id(one) in self._index and one.dim())
        for some in self._together(cut):
            self._gather(some)

    def close(self) -> None:
        """Gives the gradients memory of their own."""
        for shard in self.parameters:
            if shard.grad is not None:
                with torch.no_grad():
                    shard.grad = shard.grad.clone()
        self._gradients.clear()

    def _gather(self, some: Sequence[int]) -> None:
        # 1. Every rank sends as many rows of each as the first ranks have, so that all send equally much.
        # 2. What comes from a rank begins with its rows of the first parameter.
        # 3. Rows that are only padding are left out.
        rows = [self._rows(index) for index in some]
        size = [-(-len(one) // self._ranks) for one in rows]
        sent = torch.cat([self._padded(one, many) for one, many in zip(rows, size, strict=True)])
        received = sent.new_empty(self._ranks * sent.numel())
        all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the former name
        all_gather(received, sent, group=self._mesh.get_group())
        for rank, part in enumerate(received.view(self._ranks, -1)):
            begin = 0
            for one, many in zip(rows, size, strict=True):
                first, last = _cut(len(one), self._ranks, rank)
                width = one.shape[1]
                if rank != self._place and last > first:
                    one[first:last].copy_(part[begin : begin + (last - first) * width].view(-1, width))
                begin += many * width

    def _padded(self, rows: torch.Tensor, many: int) -> torch.Tensor:
        first, last = _cut(len(rows), self._ranks, self._place)
        missing = (many - (last - first)) * rows.shape[1]
        return torch.nn.functional.pad(rows[first:last].reshape(-1), (0, missing))

    def _rows(self, index: int) -> torch.Tensor:
        parameter = self._found.parameters[index].detach()
        width = parameter.numel() // max(1, len(parameter))
        return parameter.as_strided((len(parameter), width), (width, 1))

    def _together(self, indices: Sequence[int]) -> Iterator[list[int]]:
        """The same on every rank: parameters of one dtype, in order, up to a number of bytes."""
        some: list[int] = []
        held = 0
        for index in indices:
            parameter = self._found.parameters[index]
            if not parameter.numel():
                continue
            if some and (
                held + parameter.nbytes > _TOGETHER or parameter.dtype != self._found.parameters[some[0]].dtype
            ):
                yield some
                some, held = [], 0
            some.append(index)
            held += parameter.nbytes
        if some:
            yield some

    def _shard(self, parameter: nn.Parameter) -> Any:
        local = parameter.detach()
        if local.dim():
            first, last = _cut(len(local), self._ranks, self._place)
            local = local[first:last]
        return nn.Parameter(self._placed(parameter, local))

    def _placed(self, parameter: torch.Tensor, local: torch.Tensor) -> DTensor:
        placement = Shard(0) if parameter.dim() else Replicate()
        make: Any = DTensor.from_local
        made: DTensor = make(
            local, self._mesh, [placement], run_check=False, shape=parameter.shape, stride=parameter.stride()
        )
        return made


def _cut(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """The rows of a rank, as torch.chunk cuts."""
    size = -(-rows // ranks)
    return min(rows, size * rank), min(rows, size * (rank + 1))


def _along(mesh: Any, job_mesh: JobMesh, axis: str, device: str) -> DeviceMesh:
    if not dist.is_initialized():
        raise UsageError(f"shard={axis!r}: torch gathers the parameters; call init_process_group() before attach()")
    if not isinstance(mesh, DeviceMesh) or not mesh.mesh_dim_names:
        axes = job_mesh.axes
        mesh = init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
    along: DeviceMesh = mesh[axis]
    return along
