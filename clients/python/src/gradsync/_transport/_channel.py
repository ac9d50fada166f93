"""One conversation with the daemon that outlives its connection: requests, notifications and pushes.

`Calls` remembers which requests wait for an answer, `Connection` has the socket and the turns of reading it. Any thread
may call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import current_thread
from typing import Any

from gradsync._launch._address import fd_socket_path
from gradsync._wire import notification, request
from gradsync.errors import CallTimeout, GradsyncError, UsageError

from ._calls import Calls, Pending, Subscription
from ._connection import Connection
from ._handshake import Welcome

__all__ = ["PATIENCE_S", "Channel"]

PATIENCE_S = 0.2  # for an answer that changes nothing, so that after Ctrl-C a call returns within a second
_SLOW_S = 10.0  # a caller that waits longer is told what it waits for
_GRACE_S = 5.0  # the client's timer is this much longer than the daemon's deadline


class Channel:
    """Requests, notifications and pushes over one connection at a time."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.fd_socket_path = fd_socket_path(path)
        self._calls = Calls()
        self._connection = Connection(path, self._calls, timeout)
        self.step_done = self._connection.renew_patience  # the next loss has the full time to reconnect again

    @property
    def welcome(self) -> Welcome:
        """What the daemon said of itself."""
        return self._connection.welcome

    @property
    def seat(self) -> str:
        """The daemon at which the rank is attached; a restarted one is another."""
        return self._calls.seat

    @property
    def session_lost(self) -> bool:
        """Whether the attached rank is gone although the connection may be there."""
        return self._calls.session_error is not None

    @property
    def closed(self) -> bool:
        """Whether no call can succeed any more."""
        return self._calls.dead is not None

    # requests of any kind

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float,
        idempotent: bool,
        session: bool = False,
        seat: str | None = None,
        extend: Callable[[], bool] | None = None,
        on_slow: Callable[[str], None] | None = None,
        whole: bool = False,
    ) -> Any:
        """Sends a request and waits `timeout` + 5 s for its result; `extend` may grant another round.

        `on_slow` is called once, with the method, where the answer takes longer than 10 s. A call of the `session`
        fails when the rank is lost, and one for a `seat` when the rank is at another one. Time without a connection
        does not count, for it has a limit of its own; a timeout that is `whole` limits that time as well.

        Raises:
            RpcError: the daemon answered with an error.
            SessionMoved: the rank is attached to a restarted daemon now.
            ConnectionLost: the connection is gone and does not come back.
            CallTimeout: no answer.
        """
        wait = self._connection.wait
        with self._asked(method, params, idempotent, session, seat) as pending:
            started = time.monotonic()
            left = timeout
            if on_slow is not None and timeout > _SLOW_S and not wait(pending, _SLOW_S):
                on_slow(method)
                left = max(0.0, started + timeout - time.monotonic())
            while not wait(pending, left):
                if not (whole and pending.was_away) and wait(pending, _GRACE_S):
                    break
                away, pending.lost = pending.was_away, False
                granted = not whole if away else extend is not None and extend()
                if not granted:
                    raise CallTimeout(method, time.monotonic() - started)
                left = timeout
            return pending.result()

    def post(
        self,
        method: str,
        params: Mapping[str, Any],
        patience: float,
        *,
        seat: str | None = None,
        session: bool = True,
    ) -> Any:
        """Sends a request and waits no longer than `patience`; its result, or None where it has not come by then.

        A request that is not of the `session` changes nothing: after a lost connection it may be sent again.
        """
        with self._asked(method, params, not session, session, seat) as pending:
            return pending.result() if self._connection.wait(pending, patience) else None

    def begin(self, method: str, params: Mapping[str, Any], seat: str) -> Pending:
        """Sends a request of the attached rank, to be collected later; waits for nothing.

        Raises:
            SessionMoved: the rank is attached to a restarted daemon now.
            ConnectionLost: the connection is gone and does not come back.
        """
        return self._submit(method, params, idempotent=True, session=True, seat=seat, wait=False)

    def collect(self, pending: Pending, patience: float) -> bool:
        """Whether `pending`, which `begin` returned, has its result or its error within `patience`.

        Raises:
            ConnectionLost: the connection is gone and does not come back.
        """
        if not pending.done():
            self._calls.check_usable()
        return self._connection.wait(pending, patience)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends a notification. While the connection is away it is dropped, because step.finish repeats it."""
        self._calls.check_usable()
        self._connection.send(notification(method, params))

    @contextmanager
    def _asked(
        self, method: str, params: Mapping[str, Any], idempotent: bool, session: bool, seat: str | None
    ) -> Iterator[Pending]:
        pending = self._submit(method, params, idempotent, session, seat=seat)
        try:
            yield pending
        finally:
            if not pending.done():  # what brings the answer forgets the request
                self._calls.forget(pending.request_id)

    def _submit(
        self,
        method: str,
        params: Mapping[str, Any],
        idempotent: bool,
        session: bool,
        *,
        seat: str | None = None,
        wait: bool = True,
    ) -> Pending:
        if self._connection.thread is current_thread():
            raise UsageError(
                f"{method} called from an event callback, which runs on the thread that reads; use another thread"
            )
        request_id = next(self._connection.ids)
        pending = Pending(request_id, request(request_id, method, params), method, idempotent, session, seat)
        self._calls.add(pending)
        self._connection.send(pending.text, pending, wait=wait)
        return pending

    # the attached rank

    def attach(self, params: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """job.attach; from now on the rank is attached again after a lost connection."""
        calls = self._calls
        calls.session_error = None
        reply: dict[str, Any] = self.call("job.attach", params, timeout=timeout, idempotent=True, whole=True)
        calls.attached, calls.paused, calls.seat = params, False, self.welcome.incarnation
        return reply

    def detach(self, timeout: float) -> None:
        """job.detach. It waits for no connection that is away: the one that follows leaves the job.

        Raises:
            RpcError: the daemon answered with an error.
            ConnectionLost: the connection was lost meanwhile, or does not come back.
            CallTimeout: no answer.
        """
        self.forget_session()
        with self._asked("job.detach", {}, idempotent=False, session=True, seat=None) as pending:
            if pending.was_away:
                return
            if not self._connection.wait(pending, timeout):
                raise CallTimeout("job.detach", timeout)
            pending.result()

    def leave(self) -> None:
        """`detach` for a caller in a hurry: it hardly waits for the answer, and does not raise."""
        with suppress(GradsyncError):
            self.detach(PATIENCE_S)

    def forget_session(self) -> None:
        """The rank is not attached again after a lost connection."""
        self._calls.attached = None

    def give_up_session(self, error: GradsyncError) -> None:
        """Leaves the job; whatever the rank calls from now on raises `error`."""
        self.leave()
        self._calls.lose_session(error)

    def pause(self, paused: bool, timeout: float | None) -> None:
        """job.pause, which a restarted daemon gets too; without a timeout it hardly waits for the answer."""
        self._calls.paused = paused
        params = {"paused": paused}
        if timeout is None:
            self.post("job.pause", params, PATIENCE_S)
        else:
            self.call("job.pause", params, timeout=timeout, idempotent=True, session=True)

    def check_seat(self, seat: str, timeout: float) -> None:
        """Raises SessionMoved where the rank is at another daemon."""
        params = {"paused": self._calls.paused}
        self.call("job.pause", params, timeout=timeout, idempotent=True, session=True, seat=seat)

    # pushes

    def subscribe(self, params: Mapping[str, Any], callback: Callable[[dict[str, Any]], None], timeout: float) -> int:
        """events.subscribe; the callback runs on the reader thread. The key stays valid across connections."""
        key = next(self._connection.ids)
        subscription = self._calls.subscriptions[key] = Subscription(params, callback)
        try:
            reply = self.call("events.subscribe", params, timeout=timeout, idempotent=False)
        except BaseException:
            self._calls.subscriptions.pop(key, None)
            raise
        subscription.wire_id = reply["subscription"]
        return key

    def unsubscribe(self, key: int, timeout: float) -> None:
        """events.unsubscribe; doing it again changes nothing."""
        subscription = None if self.closed else self._calls.subscriptions.pop(key, None)
        if subscription is not None and subscription.wire_id is not None:
            params = {"subscription": subscription.wire_id}
            self.call("events.unsubscribe", params, timeout=timeout, idempotent=False)

    # the end

    def close(self, *, brief: bool = False) -> None:
        """Ends the conversation; calls in flight raise ConnectionLost. Doing it again changes nothing.

        A rank that is still attached leaves its job, so that a program which just ends does not count as one that died.
        `brief` does not wait for a daemon that may not answer.
        """
        if self._calls.attached is not None:
            self.leave()
        self._connection.close(brief=brief)
