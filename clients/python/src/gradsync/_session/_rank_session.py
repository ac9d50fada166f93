"""The rank of a process at the daemon, which is attached again after a lost connection."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from gradsync._transport._calls import Pending, Scope
from gradsync._transport._channel import Channel
from gradsync._transport._connection import Afterwards, Ask
from gradsync.errors import ConnectionLost, Draining, GradsyncError, RpcError

from ._welcome import Welcome, initialize

__all__ = ["PATIENCE_S", "RankSession", "SessionMoved"]

PATIENCE_S = 0.2  # for an answer that changes nothing, so that after Ctrl-C a call returns within a second


class SessionMoved(ConnectionLost):
    """The rank is attached to another daemon now, which knows nothing of its memory and of its plan."""


class RankSession:
    """At most one rank, and the channel through which it speaks.

    A call of the rank fails when the rank is lost. It may be meant for one `seat`, the daemon at which the rank is
    attached, and then fails when the rank is at another one. Any thread may call.
    """

    def __init__(self, path: str, timeout: float) -> None:
        """Connects.

        Raises:
            ConnectionFailed: with the reason and what to do.
            RpcError: the daemon refused.
        """
        self.path = path
        self.seat = ""  # incarnation of the daemon at which the rank is attached; a restarted one is another
        self.welcome: Welcome  # what the daemon said of itself
        self._client_id = secrets.token_hex(16)
        self._attached: Mapping[str, Any] | None = (
            None  # params of job.attach, while a loss has the rank attached again
        )
        self._paused = False
        self._error: GradsyncError | None = None  # why the rank is gone
        self.channel = Channel(path, timeout, self)

    @property
    def lost(self) -> bool:
        """Whether the rank is gone although the connection may be there."""
        return self._error is not None

    # to join and to leave

    def attach(self, params: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """job.attach; from now on the rank is attached again after a lost connection."""
        self._error = None
        reply: dict[str, Any] = self.channel.call("job.attach", params, timeout=timeout, idempotent=True, whole=True)
        self._attached, self._paused, self.seat = params, False, self.welcome.incarnation
        return reply

    def detach(self, timeout: float) -> None:
        """job.detach. It waits for no connection that is away: the one that follows leaves the job.

        Raises:
            RpcError: the daemon answered with an error.
            ConnectionLost: the connection was lost meanwhile, or does not come back.
            CallTimeout: no answer.
        """
        self.forget()
        self.channel.call_if_there("job.detach", {}, timeout, self._scope())

    def leave(self) -> None:
        """`detach` for a caller in a hurry: it hardly waits for the answer, and does not raise."""
        with suppress(GradsyncError):
            self.detach(PATIENCE_S)

    def forget(self) -> None:
        """The rank is not attached again after a lost connection."""
        self._attached = None

    def give_up(self, error: GradsyncError) -> None:
        """Leaves the job; whatever the rank calls from now on raises `error`."""
        self.leave()
        self._lose(error)

    def close(self, *, brief: bool = False) -> None:
        """Ends the channel; calls in flight raise ConnectionLost. Doing it again changes nothing.

        A rank that is still attached leaves its job, so that a program which just ends does not count as one that died.
        `brief` does not wait for a daemon that may not answer.
        """
        if self._attached is not None:
            self.leave()
        self.channel.close(brief=brief)

    # the calls of the rank

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float,
        seat: str | None = None,
        idempotent: bool = False,
        extend: Callable[[], bool] | None = None,
        on_slow: Callable[[str], None] | None = None,
        whole: bool = False,
    ) -> Any:
        """`Channel.call` for the rank.

        Raises:
            SessionMoved: the rank is attached to a restarted daemon now.
        """
        return self.channel.call(
            method,
            params,
            timeout=timeout,
            idempotent=idempotent,
            scope=self._scope(seat),
            extend=extend,
            on_slow=on_slow,
            whole=whole,
        )

    def begin(self, method: str, params: Mapping[str, Any], seat: str) -> Pending:
        """`Channel.begin` for the rank.

        Raises:
            SessionMoved: the rank is attached to a restarted daemon now.
        """
        return self.channel.begin(method, params, self._scope(seat))

    def post(self, method: str, params: Mapping[str, Any], seat: str | None = None) -> None:
        """A request to which the answer does not matter; it hardly waits for it."""
        self.channel.post(method, params, PATIENCE_S, self._scope(seat))

    def pause(self, paused: bool, timeout: float | None) -> None:
        """job.pause, which a restarted daemon gets too; without a timeout it hardly waits for the answer."""
        self._paused = paused
        if timeout is None:
            self.post("job.pause", {"paused": paused})
        else:
            self.call("job.pause", {"paused": paused}, timeout=timeout, idempotent=True)

    def check_seat(self, seat: str, timeout: float) -> None:
        """Raises SessionMoved where the rank is at another daemon."""
        self.call("job.pause", {"paused": self._paused}, timeout=timeout, idempotent=True, seat=seat)

    def _scope(self, seat: str | None = None) -> Scope:
        return partial(self._refusal, seat)

    def _refusal(self, seat: str | None) -> GradsyncError | None:
        if self._error is not None:
            return self._error
        return None if seat in (None, self.seat) else SessionMoved("the daemon was restarted; call it again")

    def _lose(self, error: GradsyncError) -> None:
        self._attached, self._error = None, error
        self.channel.review()

    # what the connection asks for

    @property
    def holds_something(self) -> bool:
        """Whether a rank is attached."""
        return self._attached is not None

    def open(self, ask: Ask) -> Afterwards:
        """Makes the client known on a new connection, and attaches its rank again.

        Raises:
            ConnectionFailed: no answer, or none that makes sense.
            ConnectionLost: the daemon is about to end; the one after it may take the rank.
            RpcError: the daemon refused.
        """
        self.welcome = initialize(ask, self.path, self._client_id)
        attached = self._attached
        resumed = attached is not None and self._resume(ask, attached)

        def has_left_meanwhile() -> tuple[str, Mapping[str, Any]] | None:
            return ("job.detach", {}) if resumed and self._attached is not attached else None

        return has_left_meanwhile

    def _resume(self, ask: Ask, params: Mapping[str, Any]) -> bool:
        """Attaches the rank again; False where it is lost, and whatever it calls says why."""
        try:
            reply = ask("job.attach", params)
            if self._paused:
                ask("job.pause", {"paused": True})
        except Draining as error:
            raise ConnectionLost(str(error)) from error
        except RpcError as error:
            self._lose(error)
            return False
        if self.seat != self.welcome.incarnation:
            self.seat = self.welcome.incarnation
            self.channel.review()
        elif not reply["resumed"]:
            self._lose(
                ConnectionLost(
                    "the daemon gave this rank up while the connection was away, its arenas and plan are gone; detach, "
                    "attach and declare again"
                )
            )
            return False
        return True
