"""How a rank goes on at the next daemon (docs/adr/0012). First it reads what came of its step from the record of the
daemon that is gone. When it calls again, it hands its memory over and declares its tensors again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradsync._session._rank_session import RankSession, SessionMoved
from gradsync._tensor import Tensor
from gradsync.errors import (
    BadToken,
    CallTimeout,
    ConnectionLost,
    Draining,
    MethodNotFound,
    ProtocolError,
    StepInDoubt,
)

from ._arena import Arena
from ._declaring import ComesBack, Declaring
from ._record import StepRecord

if TYPE_CHECKING:
    from gradsync._gpu._arena import GpuArena

__all__ = ["Reconnect"]

_GIVE_UP_S = 60.0  # how long a daemon may be there without admitting the rank
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 1.0
_JITTER = random.Random()  # the program's own random numbers stay as they are
_SAME = ("plan_digest", "arena_bytes", "offsets", "buckets")


class Reconnect:
    """What one declaration needs to be made again. Belongs to the thread that steps."""

    def __init__(
        self,
        session: RankSession,
        declaring: Declaring,
        arena: Arena | GpuArena,
        options: Mapping[str, Any],
        tensors: Sequence[Tensor],
        only_mesh: str | None,
        reply: Mapping[str, Any],
        record: StepRecord | None,
    ) -> None:
        self._session = session
        self._declaring = declaring
        self._arena = arena
        self._options = options
        self._tensors = tensors
        self._only_mesh = only_mesh
        self._declared = {key: reply.get(key) for key in _SAME}
        self._record = record
        self._possible = record is not None  # whether the record can say what came of the attempt under way
        self._doubt: tuple[int, StepRecord] | None = None  # an attempt that only other nodes know the end of
        self._ruled: dict[str, Any] | ConnectionLost | None = None  # its result, or that its gradients are lost
        self._adopted: tuple[str, int] | None = None  # daemon and number of the arena, when handed over last

    def settle(self, stamp: int) -> dict[str, Any] | None:
        """What came of the attempt that was under way: its result, or None where it may be made again.

        The second call is about an attempt that the daemon which is gone never heard of: it may be made again.
        Where the daemon has voted on the attempt and other nodes know what it came to, this is None, and `ruled` has
        its result after `declare_again`.

        Raises:
            ConnectionLost: with `step_lost`, the gradients of the attempt are lost; else the rank cannot go on.
        """
        if not self._possible:
            raise self._final("the daemon was restarted, its arenas and plan are gone")
        record, self._record = self._record, None
        if record is None:
            return None
        if record.in_doubt(stamp):
            self._doubt = stamp, record
            return None
        return record.settle(stamp)

    def ruled(self) -> dict[str, Any] | None:
        """The result of the attempt that was in doubt, once, where `declare_again` has found that it is done.

        It is asked behind `declare_again`, whose declaration holds whatever came of the attempt.

        Raises:
            ConnectionLost: with `step_lost`, the attempt failed, and its gradients are lost.
        """
        result, self._ruled = self._ruled, None
        if isinstance(result, ConnectionLost):
            raise result
        return result

    def declare_again(
        self, *, with_weights: bool, last_done: tuple[int, int] | None, timeout: float, whole: bool
    ) -> tuple[str, int, dict[str, Any]]:
        """The daemon, the number of the arena there, and what it answered to the declaration.

        `with_weights`: no step was done since the weights were looked at. `last_done`: epoch and attempt of the last
        step that was done. `timeout`: how long other ranks may take, or all of this where it is `whole`.

        Raises:
            CallTimeout: a `whole` timeout is over.
            StepInDoubt: nobody knows what came of the attempt in doubt.
            RpcError: the declaration failed, because of another rank perhaps; it may be made again.
            ConnectionLost: the daemon does not come back, or the rank cannot go on there.
        """
        tensors = self._tensors if with_weights else [replace(t, weight_fingerprint=None) for t in self._tensors]
        wires = [tensor.encode(self._only_mesh) for tensor in tensors]
        deadline = time.monotonic() + timeout
        give_up_at = time.monotonic() + _GIVE_UP_S
        delay = _FIRST_DELAY_S
        while True:
            seat = self._session.seat
            left = max(0.0, deadline - time.monotonic()) if whole else None
            if left == 0.0:
                raise CallTimeout("gradients.declare", timeout)
            try:
                buffer = self._adopt(seat, left)
                limit = max(0.0, deadline - time.monotonic()) if whole else timeout
                back = ComesBack(last_done, None if self._doubt is None else self._doubt[0], self._possible)
                reply = self._declaring.declare(buffer, self._options, wires, limit, seat, back)
                self._record = self._declaring.record(reply, seat)
                break
            except StepInDoubt:
                self._doubt = None
                raise
            except SessionMoved:
                give_up_at = time.monotonic() + _GIVE_UP_S
            except MethodNotFound as error:
                raise self._final(f"the daemon was restarted, and its release takes no arenas: {error}") from error
            except (BadToken, ConnectionLost, Draining) as error:
                if self._session.channel.closed or time.monotonic() > give_up_at:
                    raise self._final(f"the daemon was restarted and does not take this rank back: {error}") from error
                time.sleep(delay * _JITTER.uniform(0.5, 1.0))
                delay = min(2 * delay, _LONGEST_DELAY_S)
        self._possible = self._record is not None
        self._check_plan(reply)
        self._take_verdict(reply.get("verdict"))
        return seat, buffer, reply

    def _take_verdict(self, verdict: str | None) -> None:
        if self._doubt is None:
            return
        (stamp, record), self._doubt = self._doubt, None
        if verdict == "done":
            self._ruled = record.result()
        elif verdict == "failed":
            try:
                record.settle(stamp)
            except ConnectionLost as lost:
                self._ruled = lost
        else:
            raise ProtocolError("the daemon did not say what came of the step in doubt; install both of one release")

    def _adopt(self, seat: str, timeout: float | None) -> int:
        """The number of the arena at this daemon, to which it is handed over once."""
        if self._adopted is None or self._adopted[0] != seat:
            self._adopted = (seat, self._declaring.adopt(self._arena, seat, timeout))
        return self._adopted[1]

    def _check_plan(self, reply: Mapping[str, Any]) -> None:
        if {key: reply.get(key) for key in _SAME} != self._declared:
            raise self._final(
                f"the restarted daemon made plan {reply.get('plan_digest')} of what was plan "
                f"{self._declared['plan_digest']}: the gradients would lie elsewhere"
            )

    def _final(self, text: str) -> ConnectionLost:
        error = ConnectionLost(f"{text}; detach, attach and declare again")
        self._session.give_up(error)
        return error
