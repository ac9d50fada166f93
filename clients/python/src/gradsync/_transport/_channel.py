"""One conversation with the daemon that outlives its connection: requests, notifications and pushes.

`Calls` remembers which requests wait for an answer, `Connection` has the socket and the turns of reading it. Any thread
may call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import current_thread
from typing import Any

from gradsync._launch._address import fd_socket_path
from gradsync._wire import notification, request
from gradsync.errors import CallTimeout, UsageError

from ._calls import Calls, Pending, Scope, Subscription, unscoped
from ._connection import Connection, Opening

__all__ = ["Channel"]

_SLOW_S = 10.0  # a caller that waits longer is told what it waits for
_GRACE_S = 5.0  # the client's timer is this much longer than the daemon's deadline


class Channel:
    """Requests, notifications and pushes over one connection at a time."""

    def __init__(self, path: str, timeout: float, opening: Opening) -> None:
        self.path = path
        self.fd_socket_path = fd_socket_path(path)
        self._calls = Calls()
        self._connection = Connection(path, self._calls, opening, timeout)
        self.renew_patience = self._connection.renew_patience
        self.review = self._calls.review

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
        scope: Scope = unscoped,
        extend: Callable[[], bool] | None = None,
        on_slow: Callable[[str], None] | None = None,
        whole: bool = False,
    ) -> Any:
        """Sends a request and waits `timeout` + 5 s for its result; `extend` may grant another round.

        `on_slow` is called once, with the method, where the answer takes longer than 10 s. The call fails with what its
        `scope` says, as soon as it says so. Time without a connection does not count, for it has a limit of its own; a
        timeout that is `whole` limits that time as well.

        Raises:
            RpcError: the daemon answered with an error.
            ConnectionLost: the connection is gone and does not come back.
            CallTimeout: no answer.
        """
        wait = self._connection.wait
        with self._asked(method, params, idempotent, scope) as pending:
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

    def call_if_there(self, method: str, params: Mapping[str, Any], timeout: float, scope: Scope) -> None:
        """`call` that does not wait for a connection that is away; it may be sent when that is back.

        Raises:
            RpcError: the daemon answered with an error.
            ConnectionLost: the connection was lost meanwhile, or does not come back.
            CallTimeout: no answer.
        """
        with self._asked(method, params, idempotent=False, scope=scope) as pending:
            if pending.was_away:
                return
            if not self._connection.wait(pending, timeout):
                raise CallTimeout(method, timeout)
            pending.result()

    def post(
        self,
        method: str,
        params: Mapping[str, Any],
        patience: float,
        scope: Scope = unscoped,
        *,
        idempotent: bool = False,
    ) -> Any:
        """Sends a request and waits no longer than `patience`; its result, or None where it has not come by then."""
        with self._asked(method, params, idempotent, scope) as pending:
            return pending.result() if self._connection.wait(pending, patience) else None

    def begin(self, method: str, params: Mapping[str, Any], scope: Scope) -> Pending:
        """Sends an idempotent request, to be collected later; waits for nothing.

        Raises:
            ConnectionLost: the connection is gone and does not come back.
        """
        return self._submit(method, params, True, scope, wait=False)

    def collect(self, pending: Pending, patience: float) -> bool:
        """Whether `pending`, which `begin` returned, has its result or its error within `patience`.

        Raises:
            ConnectionLost: the connection is gone and does not come back.
        """
        if not pending.done():
            self._calls.check_usable()
        return self._connection.wait(pending, patience)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends a notification. While the connection is away it is dropped: what needs it repeats it."""
        self._calls.check_usable()
        self._connection.send(notification(method, params))

    @contextmanager
    def _asked(self, method: str, params: Mapping[str, Any], idempotent: bool, scope: Scope) -> Iterator[Pending]:
        pending = self._submit(method, params, idempotent, scope)
        try:
            yield pending
        finally:
            if not pending.done():  # what brings the answer forgets the request
                self._calls.forget(pending.request_id)

    def _submit(
        self, method: str, params: Mapping[str, Any], idempotent: bool, scope: Scope, *, wait: bool = True
    ) -> Pending:
        if self._connection.thread is current_thread():
            raise UsageError(
                f"{method} called from an event callback, which runs on the thread that reads; use another thread"
            )
        request_id = next(self._connection.ids)
        pending = Pending(request_id, request(request_id, method, params), method, idempotent, scope)
        self._calls.add(pending)
        self._connection.send(pending.text, pending, wait=wait)
        return pending

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

        `brief` does not wait for a daemon that may not answer.
        """
        self._connection.close(brief=brief)
