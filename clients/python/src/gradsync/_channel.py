"""One conversation with the daemon that outlives its connection: requests, notifications and pushes.

`Calls` remembers who waits for what, `Connection` has the socket and who reads it. Any thread may call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from ._address import fd_socket_path
from ._calls import Calls
from ._connection import Connection
from ._handshake import Deadlines
from ._pending import NOTHING, Pending, Subscription
from ._wire import dump, request
from .errors import CallTimeout, GradsyncError, UsageError

__all__ = ["PATIENCE_S", "Channel"]

PATIENCE_S = 0.2  # for an answer that changes nothing: after Ctrl-C a call returns within a second
_GRACE_S = 5.0  # the client's timer is this much longer than the daemon's deadline

Callback = Callable[[dict[str, Any]], None]


class Channel:
    """Requests, notifications and pushes over one connection at a time."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.fd_socket_path = fd_socket_path(path)
        self._calls = Calls()
        self._connection = Connection(path, self._calls, timeout)

    def call(
        self,
        method: str,
        params: str,
        *,
        timeout: float,
        idempotent: bool,
        session: bool = False,
        seat: str | None = None,
        extend: Callable[[], bool] | None = None,
        instead: bool = False,
    ) -> Any:
        """Sends a request and waits `timeout` + 5 s for its result; `extend` may grant another round.

        `instead`: it says what the notification that was kept says, which is not sent then.

        A call of the `session` fails when the rank is lost, and one for a `seat` when the rank is at another one. Time
        without a connection does not count; it has a limit of its own.

        Raises:
            RpcError: the daemon answered with an error.
            SessionMoved: the rank is attached to a restarted daemon now.
            ConnectionLost: the connection is gone and does not come back.
            CallTimeout: no answer.
        """
        pending = self._submit(method, params, idempotent, session, seat=seat, instead=instead)
        started = time.monotonic()
        losses = self._connection.losses
        try:
            while True:
                result = self._connection.wait(pending, timeout + _GRACE_S)
                if result is not NOTHING:
                    return result
                if self._connection.is_away or losses != self._connection.losses:
                    losses = self._connection.losses
                    continue
                if extend is None or not extend():
                    raise CallTimeout(method, time.monotonic() - started)
        finally:
            if not pending.done:  # who ends one forgets it
                self._calls.forget(pending.request_id)

    def post(self, method: str, params: str, patience: float, *, seat: str | None = None) -> None:
        """Sends a request whose answer is of no more use, and waits no longer than `patience` for it."""
        pending = self._submit(method, params, idempotent=False, session=True, seat=seat)
        try:
            self._connection.wait(pending, patience)
        finally:
            self._calls.forget(pending.request_id)

    def begin(self, method: str, params: str, seat: str) -> Pending:
        """Sends a request of the attached rank, to be collected later; waits for nothing.

        Raises:
            SessionMoved: the rank is attached to a restarted daemon now.
            ConnectionLost: the connection is gone and does not come back.
        """
        return self._submit(method, params, idempotent=True, session=True, seat=seat, wait=False)

    def collect(self, pending: Pending, patience: float) -> Any:
        """What `begin` asked for, or NOTHING where it has not come within `patience`.

        Raises:
            RpcError: the daemon answered with an error.
            ConnectionLost: the connection is gone and does not come back.
        """
        if not pending.done:
            self._calls.check_usable()
        return self._connection.wait(pending, patience)

    def notify(self, text: str, *, keep: bool = False) -> None:
        """Sends a notification; while the connection is away it is dropped, since step.finish repeats what they say.

        With `keep` it may wait for the next call, for half a second at most.
        """
        self._calls.check_usable()
        self._connection.notify(text, keep=keep)

    def attach(self, params: str, timeout: float) -> dict[str, Any]:
        """job.attach; from now on the rank is attached again after a lost connection."""
        self._calls.session_error = None
        reply: dict[str, Any] = self.call("job.attach", params, timeout=timeout, idempotent=True)
        self._connection.hold_seat(params)
        return reply

    def leave(self) -> None:
        """job.detach for a caller in a hurry: said, but hardly waited for."""
        self.post("job.detach", "{}", PATIENCE_S)

    def pause(self, paused: bool, timeout: float | None) -> None:
        """job.pause, which a restarted daemon is told as well; without a timeout it is said, but hardly waited for."""
        self._connection.paused = paused
        params = dump({"paused": paused})
        if timeout is None:
            self.post("job.pause", params, PATIENCE_S)
        else:
            self.call("job.pause", params, timeout=timeout, idempotent=True, session=True)

    @property
    def seat(self) -> str:
        """The daemon at which the rank is attached; a restarted one is another."""
        return self._calls.seat

    def check_seat(self, seat: str, timeout: float) -> None:
        """Raises SessionMoved where the rank is at another daemon."""
        params = dump({"paused": self._connection.paused})
        self.call("job.pause", params, timeout=timeout, idempotent=True, session=True, seat=seat)

    def step_done(self) -> None:
        """The daemon is of use: the next loss has all the time to come back."""
        self._connection.renew_patience()

    def give_up_session(self, error: GradsyncError) -> None:
        """Leaves the job; whatever the rank calls from now on raises `error`."""
        with contextlib.suppress(GradsyncError):
            self.leave()
        self._connection.drop_seat()
        self._calls.lose_session(error)

    def forget_session(self) -> None:
        """The rank is not attached again after a lost connection."""
        self._connection.drop_seat()

    def subscribe(self, params: str, callback: Callback, timeout: float) -> int:
        """events.subscribe; the callback runs on the reader thread. The key stays valid across connections."""
        key = next(self._connection.ids)
        subscription = Subscription(params, callback)
        self._calls.add_subscription(key, subscription)
        try:
            reply = self.call("events.subscribe", params, timeout=timeout, idempotent=False)
        except BaseException:
            self._calls.drop_subscription(key)
            raise
        subscription.wire_id = reply["subscription"]
        return key

    def unsubscribe(self, key: int, timeout: float) -> None:
        """events.unsubscribe; doing it again changes nothing."""
        subscription = None if self.closed else self._calls.drop_subscription(key)
        if subscription is not None and subscription.wire_id is not None:
            params = dump({"subscription": subscription.wire_id})
            self.call("events.unsubscribe", params, timeout=timeout, idempotent=False)

    def close(self, *, brief: bool = False) -> None:
        """Ends the conversation; calls in flight raise ConnectionLost. Doing it again changes nothing.

        A rank that is still attached leaves: a program may end without a word, and has not died for that. `brief` does
        not wait for a daemon that may not answer.
        """
        if self._connection.has_seat:
            with contextlib.suppress(GradsyncError):
                self.leave()
            self._connection.drop_seat()
        self._connection.close(brief=brief)

    @property
    def server(self) -> dict[str, Any]:
        """Name, version and pid of the daemon."""
        return self._connection.server

    @property
    def deadlines(self) -> Deadlines:
        """Those of the daemon."""
        return self._connection.deadlines

    @property
    def session_lost(self) -> bool:
        """Whether the attached rank is gone although the connection may be there."""
        return self._calls.session_error is not None

    @property
    def closed(self) -> bool:
        """Whether no call can succeed any more."""
        return self._calls.dead is not None

    def _submit(
        self,
        method: str,
        params: str,
        idempotent: bool,
        session: bool,
        *,
        seat: str | None = None,
        wait: bool = True,
        instead: bool = False,
    ) -> Pending:
        if self._connection.reader == get_ident():
            raise UsageError(
                f"{method} called from an event callback, which runs on the thread that reads; use another thread"
            )
        request_id = next(self._connection.ids)
        pending = Pending(request_id, request(request_id, method, params), method, idempotent, session, seat)
        self._calls.add(pending)
        self._connection.send(pending, wait=wait, instead=instead)
        return pending
