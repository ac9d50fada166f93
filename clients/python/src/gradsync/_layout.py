"""Where the declared tensors lie in the arena, and in which buckets. Fixed once declared; any thread may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._arena import Arena
from ._buffer import Buffer
from ._tensor import ARENA_ALIGNMENT, Tensor

__all__ = ["Bucket", "Layout"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors (by index) that lie together in the arena and are reduced by one launch."""

    index: int
    dtype: str
    offset: int
    nbytes: int
    tensors: tuple[int, ...]


class Layout:
    """The daemon's answer to a declaration, beside the memory it speaks of."""

    def __init__(self, tensors: Sequence[Tensor], arena: Arena, reply: dict[str, Any]) -> None:
        self.arena = arena
        self.tensors: tuple[Tensor, ...] = tuple(tensors)
        self.buckets: list[Bucket] = [
            Bucket(index, wire["dtype"], wire["offset"], wire["bytes"], tuple(wire["tensors"]))
            for index, wire in enumerate(reply["buckets"])
        ]
        self.offsets: list[int] = list(reply["offsets"]) if "offsets" in reply else self._packed_offsets()
        self._buffers: dict[int, Buffer] = {}

    def buffer(self, index: int) -> Buffer:
        """The memory of a tensor."""
        buffer = self._buffers.get(index)
        if buffer is None:
            tensor = self.tensors[index]
            offset = self.offsets[index]
            memory = self.arena.memory[offset : offset + tensor.nbytes]
            buffer = Buffer(memory, tensor.name, tensor.held_shape, tensor.dtype, offset)
            self._buffers[index] = buffer
        return buffer

    def forget_buffers(self) -> None:
        """Memory stays mapped only as long as somebody else holds a view of it."""
        self._buffers.clear()

    def _packed_offsets(self) -> list[int]:
        # A reply for very many tensors leaves them out: a bucket's tensors follow each other, each rounded up.
        offsets = [0] * len(self.tensors)
        for bucket in self.buckets:
            offset = bucket.offset
            for index in bucket.tensors:
                offsets[index] = offset
                offset += -(-self.tensors[index].nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
        return offsets
