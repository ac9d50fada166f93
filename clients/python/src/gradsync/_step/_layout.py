"""Where the declared tensors lie in the arena, and in which buckets. Fixed once declared; any thread may read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradsync._tensor import ITEM_BYTES, Mesh, Tensor

from ._arena import Arena
from ._buffer import Buffer
from ._output import cuts_of, mesh_of, output_shape, padded, reserved_bytes

if TYPE_CHECKING:
    from gradsync._gpu._arena import GpuArena

__all__ = ["Bucket", "Layout"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors (by index) that lie together in the arena and are reduced by one launch.

    Without tensors it is a bucket of other ranks, which this rank neither fills nor reports.
    """

    index: int
    dtype: str
    offset: int  #: bytes from the start of the arena
    nbytes: int  #: the bytes of inputs, and of outputs where they are scattered
    tensors: tuple[int, ...]


class Layout:
    """The daemon's answer to a declaration, beside the memory it speaks of."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        arena: Arena | GpuArena,
        reply: dict[str, Any],
        meshes: Mapping[str, Mesh],
        rank: int,
    ) -> None:
        self.arena = arena
        self.tensors: tuple[Tensor, ...] = tuple(tensors)
        self._meshes = meshes
        self._rank = rank
        self.buckets: list[Bucket] = [
            Bucket(index, wire["dtype"], wire["offset"], wire["bytes"], tuple(wire["tensors"]))
            for index, wire in enumerate(reply["buckets"])
        ]
        self.offsets: list[int] = list(reply["offsets"]) if "offsets" in reply else self._packed_offsets()
        self._inputs: dict[int, Buffer] = {}
        self._outputs: dict[int, Buffer] = {}

    def input(self, index: int) -> Buffer:
        """The memory that backward fills: `local_shape` of the tensor."""
        buffer = self._inputs.get(index)
        if buffer is None:
            tensor = self.tensors[index]
            buffer = self._inputs[index] = self._view(tensor, tensor.held_shape, self.offsets[index])
        return buffer

    def output(self, index: int) -> Buffer:
        """The memory of the result; the input's, but for a scattered tensor."""
        tensor = self.tensors[index]
        mesh = mesh_of(tensor, self._meshes)
        if not cuts_of(tensor, mesh):
            return self.input(index)
        buffer = self._outputs.get(index)
        if buffer is None:
            shape = output_shape(tensor, mesh, self._rank)
            offset = self.offsets[index] + padded(tensor.nbytes)
            buffer = self._outputs[index] = self._view(tensor, shape, offset)
        return buffer

    def forget_buffers(self) -> None:
        """From now on memory stays mapped only as long as the caller holds a view of it."""
        self._inputs.clear()
        self._outputs.clear()

    def _view(self, tensor: Tensor, shape: tuple[int, ...], offset: int) -> Buffer:
        nbytes = math.prod(shape) * ITEM_BYTES[tensor.dtype]
        return self.arena.view(tensor.name, shape, tensor.dtype, offset, nbytes)

    def _packed_offsets(self) -> list[int]:
        # A reply for very many tensors leaves them out: a bucket's tensors follow each other, each with its output
        # where it is scattered, inputs and outputs rounded up to whole lines.
        offsets = [0] * len(self.tensors)
        for bucket in self.buckets:
            offset = bucket.offset
            for index in bucket.tensors:
                tensor = self.tensors[index]
                offsets[index] = offset
                offset += padded(tensor.nbytes) + padded(reserved_bytes(tensor, mesh_of(tensor, self._meshes)))
        return offsets
