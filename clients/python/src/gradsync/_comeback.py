"""How a rank goes on at the next daemon (docs/adr/0012): first what came of its step, by the record of the daemon that
is gone; then, when it calls again, its memory handed over and its tensors declared anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._arena import Arena
from ._channel import Channel
from ._declaring import Declaring
from ._pending import SessionMoved
from ._record import StepRecord
from ._tensor import Tensor
from ._wire import dump
from .errors import BadToken, ConnectionLost, Draining, GradsyncError

__all__ = ["Comeback"]

_GIVE_UP_S = 60.0  # of a daemon that is there and does not take the rank
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 1.0
_SAME = ("plan_digest", "arena_bytes", "offsets", "buckets")


class Comeback:
    """What one declaration needs to be made again. Belongs to the thread that steps."""

    def __init__(
        self,
        channel: Channel,
        declaring: Declaring,
        arena: Arena,
        options: str,
        tensors: Sequence[Tensor],
        only_mesh: str | None,
        reply: Mapping[str, Any],
        record: StepRecord | None,
    ) -> None:
        self._channel = channel
        self._declaring = declaring
        self._arena = arena
        self._options = options
        self._tensors = tensors
        self._only_mesh = only_mesh
        self._declared = {key: reply.get(key) for key in _SAME}
        self._record = record
        self._possible = record is not None  # else the daemon is of a release before records

    def settle(self, stamp: int) -> dict[str, Any] | None:
        """What came of the attempt that was under way: its result, or None where it may be made again.

        Asked twice, the second attempt is one that the daemon which is gone never heard of.

        Raises:
            ConnectionLost: with `step_lost`, the gradients of the attempt are lost; else the rank cannot go on.
        """
        if not self._possible:
            raise self._final(
                "the daemon was restarted, its arenas and plan are gone; detach, attach and declare again"
            )
        record, self._record = self._record, None
        return None if record is None else record.settle(stamp)

    def declare_again(self, *, with_weights: bool, timeout: float) -> tuple[int, dict[str, Any]]:
        """The number of the arena at this daemon, and what it answered to the declaration.

        `with_weights`: no step was done since the weights were looked at. `timeout`: how long other ranks may take.

        Raises:
            ConnectionLost: the daemon does not come back, or does not take the rank.
        """
        tensors = self._tensors if with_weights else [replace(t, weight_fingerprint=None) for t in self._tensors]
        wires = [dump(tensor.encode(self._only_mesh)) for tensor in tensors]
        give_up_at = time.monotonic() + _GIVE_UP_S
        delay = _FIRST_DELAY_S
        buffer: int | None = None
        self._channel.accept_move()
        while True:
            try:
                if buffer is None:
                    buffer = self._declaring.adopt(self._arena)
                reply = self._declaring.declare(buffer, self._options, wires, timeout)
                self._record = self._declaring.record(reply)
                break
            except SessionMoved:
                buffer = None
                give_up_at = time.monotonic() + _GIVE_UP_S
                self._channel.accept_move()
            except (BadToken, ConnectionLost, Draining) as error:
                if self._channel.closed or time.monotonic() > give_up_at:
                    raise self._final(f"the daemon was restarted and does not take this rank back: {error}") from error
                if isinstance(error, BadToken):
                    buffer = None
                time.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY_S)
            except GradsyncError as error:
                raise self._final(f"the daemon was restarted and does not take this rank back: {error}") from error
        self._possible = self._record is not None
        if {key: reply.get(key) for key in _SAME} != self._declared:
            raise self._final(
                f"the restarted daemon made plan {reply.get('plan_digest')} of what was plan "
                f"{self._declared['plan_digest']}: the gradients would lie elsewhere; detach, attach and declare again"
            )
        return buffer, reply

    def _final(self, text: str) -> ConnectionLost:
        error = ConnectionLost(text)
        self._channel.give_up_session(error)
        return error
