"""What a daemon says of the last attempts of a plan, in memory that survives it (docs/protocol.md, "The step record").

A rank maps it for reading while the daemon lives, and reads it once the daemon is gone.
"""

from __future__ import annotations

import struct
from typing import Any

from gradsync._wire import load
from gradsync.errors import ConnectionLost, ProtocolError

from ._arena import Arena

__all__ = ["StepRecord", "attempt_of", "stamp_of"]

_HEADER = struct.Struct("<8sIIQQQ")  # magic, world size, bytes of a slot, begun, done, voted
_MAGIC = b"gsrecrd1"
_SLOTS_AT = 4096
_LENGTH = struct.Struct("<Q")


def stamp_of(epoch: int, attempt: int) -> int:
    """An attempt as one number, never 0; a later one of the same daemon is larger."""
    return epoch << 32 | attempt + 1


def attempt_of(stamp: int) -> tuple[int, int]:
    """Epoch and attempt of a stamp."""
    return stamp >> 32, (stamp & 0xFFFFFFFF) - 1


class StepRecord:
    """The record of one plan, as one rank sees it."""

    def __init__(self, memory: Arena, rank: int) -> None:
        """Raises ProtocolError where the memory is no record of a job with this rank."""
        self._memory = memory
        self._rank = rank
        size = memory.size_bytes
        magic, world_size, slot_bytes, *_ = _HEADER.unpack_from(memory.memory) if size >= _SLOTS_AT else (b"",) * 3
        if magic != _MAGIC or rank >= world_size or size < _SLOTS_AT + world_size * slot_bytes:
            raise ProtocolError("the daemon sent a step record that cannot be read; install both of one release")
        self._slot_at = _SLOTS_AT + rank * slot_bytes
        self._slot_bytes = slot_bytes

    def in_doubt(self, stamp: int) -> bool:
        """Whether the daemon voted that an attempt is done, and did not live to hear what other nodes voted."""
        *_, done, voted = _HEADER.unpack_from(self._memory.memory)
        return bool(voted == stamp != done)

    def settle(self, stamp: int) -> dict[str, Any] | None:
        """What came of an attempt: its result, or None where no gradient was touched and it may be made again.

        Raises:
            ConnectionLost: with `step_lost`, its gradients are lost.
        """
        *_, begun, done, _ = _HEADER.unpack_from(self._memory.memory)
        if done == stamp:
            return self.result()
        if begun >= stamp:
            raise ConnectionLost(
                "the daemon ended while it reduced the gradients of this step, which are lost on every rank: compute "
                "the step anew and finish it again; everything else goes on",
                step_lost=True,
            )
        return None

    def result(self) -> dict[str, Any]:
        """The result of the last attempt that was done, or voted to be.

        Raises:
            ConnectionLost: it cannot be read.
        """
        slot = self._memory.memory[self._slot_at : self._slot_at + self._slot_bytes]
        (length,) = _LENGTH.unpack_from(slot)
        result = load(str(slot[_LENGTH.size : _LENGTH.size + length], "utf-8")) if length else None
        if not isinstance(result, dict):
            raise ConnectionLost(
                "the daemon ended after this step was done, and its result cannot be read: the gradients are those of "
                "the step, the report is lost; detach, attach and declare again"
            )
        return result
