"""One conversation with the daemon that outlives its connection.

Threads: one reader thread per channel reads, completes futures, and comes back after a loss (re-initialise, re-attach,
send again what may be sent again). Any thread may send. Lock order: `_send_lock`, then `_lock`; nobody waits while
holding `_lock`. In a forked child the channel is dead: its socket is closed there and every call says so.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from ._address import fd_socket_path
from ._handshake import Deadlines, ask, shake_hands
from ._pending import NOTHING, Pending, Subscription, wait
from ._wire import dump, load, request
from .errors import (
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    GradsyncError,
    ProtocolError,
    RpcError,
    UsageError,
    error_from_wire,
)

__all__ = ["Channel"]

_log = logging.getLogger("gradsync")

_GRACE_S = 5.0  # the client's timer is this much longer than the daemon's deadline
_RECONNECT_S = 15.0
_HANDSHAKE_S = 5.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 1.0

Callback = Callable[[dict[str, Any]], None]


class Channel:
    """Requests, notifications and pushes over one connection at a time."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.fd_socket_path = fd_socket_path(path)
        self.client_id = secrets.token_hex(16)
        self.deadlines = Deadlines()
        self.server: dict[str, Any] = {}
        self.incarnation = ""
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._resume: str | None = None  # params of job.attach while a rank is attached
        self._session_error: GradsyncError | None = None
        self._dead: GradsyncError | None = None
        self._closing = threading.Event()
        websocket, _ = self._handshake(time.monotonic() + timeout)
        self._websocket: ClientConnection | None = websocket
        self._held = websocket  # for the forked child, which takes no lock
        self._thread = threading.Thread(target=self._run, args=(websocket,), name="gradsync-reader", daemon=True)
        self._thread.start()
        _channels.add(self)

    # calls

    def call(
        self,
        method: str,
        params: str,
        *,
        timeout: float,
        idempotent: bool,
        session: bool = False,
        extend: Callable[[], bool] | None = None,
    ) -> Any:
        """Sends a request and waits `timeout` + 5 s for its result; `extend` may grant another round.

        Raises:
            RpcError: the daemon answered with an error.
            ConnectionLost: the connection is gone and does not come back.
            CallTimeout: no answer.
        """
        pending = self._submit(method, params, idempotent, session)
        started = time.monotonic()
        try:
            while True:
                result = wait(pending.future, timeout + _GRACE_S)
                if result is not NOTHING:
                    return result
                if extend is None or not extend():
                    raise CallTimeout(method, time.monotonic() - started)
        finally:
            with self._lock:
                self._pending.pop(pending.request_id, None)

    def notify(self, text: str) -> None:
        """Sends a notification; while the connection is away it is dropped, since step.finish repeats what they say."""
        self._check_usable()
        with self._send_lock:
            websocket = self._websocket
            if websocket is not None:
                with contextlib.suppress(ConnectionClosed):
                    self._send(websocket, text)

    def attach(self, params: str, timeout: float) -> dict[str, Any]:
        """job.attach; from now on the rank is attached again after a lost connection."""
        self._session_error = None
        reply: dict[str, Any] = self.call("job.attach", params, timeout=timeout, idempotent=True)
        self._resume = params
        return reply

    def forget_session(self) -> None:
        """The rank is not attached again after a lost connection."""
        self._resume = None

    def subscribe(self, params: str, callback: Callback, timeout: float) -> int:
        """events.subscribe; the callback runs on the reader thread. The key stays valid across connections."""
        key = next(self._ids)
        subscription = Subscription(params, callback)
        with self._lock:
            self._subscriptions[key] = subscription
        try:
            reply = self.call("events.subscribe", params, timeout=timeout, idempotent=False)
        except BaseException:
            with self._lock:
                self._subscriptions.pop(key, None)
            raise
        subscription.wire_id = reply["subscription"]
        return key

    def unsubscribe(self, key: int, timeout: float) -> None:
        """events.unsubscribe; doing it again changes nothing."""
        with self._lock:
            subscription = self._subscriptions.pop(key, None)
        if subscription is not None and subscription.wire_id is not None and self._dead is None:
            params = dump({"subscription": subscription.wire_id})
            self.call("events.unsubscribe", params, timeout=timeout, idempotent=False)

    def close(self) -> None:
        """Ends the conversation; calls in flight raise ConnectionLost. Doing it again changes nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._die(ConnectionLost("the client was closed; gradsync.connect() opens another"))
        websocket = self._held
        with contextlib.suppress(Exception):
            websocket.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_HANDSHAKE_S)

    @property
    def session_lost(self) -> bool:
        """Whether the attached rank is gone although the connection may be there."""
        return self._session_error is not None

    @property
    def closed(self) -> bool:
        """Whether no call can succeed any more."""
        return self._dead is not None

    def abandon_in_child(self) -> None:
        """In a forked child: closes the child's copy of the socket, without a word to the daemon and without a lock."""
        parent = os.getppid()
        self._closing.set()
        self._dead = ConnectionLost(
            f"this client belongs to process {parent}, which forked this one; call gradsync.connect() in the child"
        )
        with contextlib.suppress(OSError):
            os.close(self._held.socket.detach())

    # sending

    def _submit(self, method: str, params: str, idempotent: bool, session: bool) -> Pending:
        if threading.current_thread() is self._thread:
            raise UsageError(
                f"{method} called from an event callback, which runs on the reader thread; use another thread"
            )
        request_id = next(self._ids)
        pending = Pending(request_id, request(request_id, method, params), method, idempotent, session)
        with self._lock:
            self._check_usable()
            if session and self._session_error is not None:
                raise self._session_error
            self._pending[request_id] = pending
        with self._send_lock:
            websocket = self._websocket
            if websocket is not None and not pending.sent:
                with contextlib.suppress(ConnectionClosed):  # then the reader comes back and sends it
                    self._send(websocket, pending.text)
                    pending.sent = True
        return pending

    @staticmethod
    def _send(websocket: ClientConnection, text: str) -> None:
        try:
            websocket.send(text)
        except Exception:
            raise
        except BaseException:  # Ctrl-C in the middle of a frame: the rest of the stream would be noise
            websocket.close_socket()
            raise

    def _check_usable(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(*self._dead.args)

    # the reader thread

    def _run(self, websocket: ClientConnection) -> None:
        current: ClientConnection | None = websocket
        try:
            while current is not None:
                reason = self._read(current)
                if self._closing.is_set():
                    return
                current = self._come_back(reason)
        except Exception as error:  # a defect, here or in an answer: nobody may wait for a reader that is gone
            _log.exception("the reader thread of %s failed", self.path)
            self._die(
                ConnectionLost(f"the client's reader thread failed ({error!r}); connect, attach and declare again")
            )

    def _read(self, websocket: ClientConnection) -> str:
        try:
            while True:
                self._on_message(websocket.recv())
        except ConnectionClosed as closed:
            return str(closed)
        except ProtocolError as error:
            websocket.close_socket()
            return str(error)

    def _on_message(self, text: str | bytes) -> None:
        message = load(text)
        for item in message if isinstance(message, list) else [message]:
            if not isinstance(item, dict):
                raise ProtocolError(f"the daemon sent {item!r} where an object belongs; install both of one release")
            if "method" in item:
                self._on_push(item)
            else:
                self._on_reply(item)

    def _on_reply(self, reply: dict[str, Any]) -> None:
        request_id = reply.get("id")
        if request_id is None:
            _log.warning("the daemon could not read a message of this client: %s", reply.get("error"))
            return
        with self._lock:
            pending = self._pending.pop(request_id, None)
        if pending is None:
            return  # its caller has gone (Ctrl-C, timeout)
        if "error" in reply:
            pending.future.set_exception(error_from_wire(reply["error"]))
        else:
            pending.future.set_result(reply.get("result"))

    def _on_push(self, push: dict[str, Any]) -> None:
        params = push.get("params")
        if push["method"] != "events.notification" or not isinstance(params, dict):
            return
        with self._lock:
            targets = [s.callback for s in self._subscriptions.values() if s.wire_id == params.get("subscription")]
        for callback in targets:
            try:
                callback(params)
            except Exception:
                _log.exception("an event callback raised; the subscription goes on")

    # coming back

    def _come_back(self, reason: str) -> ClientConnection | None:
        with self._send_lock:
            self._websocket = None
        with self._lock:
            lost = [p for p in self._pending.values() if p.sent and not p.idempotent]
            for pending in lost:
                del self._pending[pending.request_id]
        for pending in lost:
            pending.future.set_exception(
                ConnectionLost(
                    f"the connection was lost while {pending.method} was under way ({reason}); call it again"
                )
            )
        _log.warning("connection to %s lost (%s); connecting again", self.path, reason)
        deadline = time.monotonic() + _RECONNECT_S
        delay = _FIRST_DELAY_S
        while True:
            try:
                websocket, incarnation_before = self._handshake(min(deadline, time.monotonic() + _HANDSHAKE_S))
                try:
                    if self._take_over(websocket, incarnation_before):
                        return websocket
                except BaseException:
                    websocket.close_socket()
                    raise
                failure: GradsyncError = ConnectionLost("the new connection was lost at once")
            except GradsyncError as error:
                failure = error
            final = isinstance(failure, ConnectionFailed) and failure.reason in ("version", "refused", "permission")
            if final or time.monotonic() + delay > deadline:
                self._die(
                    ConnectionLost(
                        f"the connection to {self.path} was lost ({reason}) and does not come back: {failure}; "
                        "when the daemon runs again, connect, attach and declare again"
                    )
                )
                return None
            if self._closing.wait(delay * random.uniform(0.5, 1.0)):
                return None
            delay = min(delay * 2, _LONGEST_DELAY_S)

    def _take_over(self, websocket: ClientConnection, incarnation_before: str) -> bool:
        if self._resume is not None:
            self._resume_session(websocket, incarnation_before)
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            self._renew(websocket, subscription)
        with self._send_lock:
            self._held = websocket
            if self._closing.is_set():  # close() may have seen the old one
                websocket.close_socket()
            self._websocket = websocket
            with self._lock:
                again = sorted(self._pending.values(), key=lambda p: p.request_id)
            try:
                for pending in again:
                    websocket.send(pending.text)
                    pending.sent = True
            except ConnectionClosed:
                self._websocket = None
                return False
        _log.warning("connection to %s is back", self.path)
        return True

    def _renew(self, websocket: ClientConnection, subscription: Subscription) -> None:
        subscription.wire_id = None
        try:
            reply = self._ask(websocket, "events.subscribe", subscription.params)
            subscription.wire_id = reply["subscription"]
        except RpcError as error:
            _log.warning("a subscription ended with the lost connection: %s", error)

    def _resume_session(self, websocket: ClientConnection, incarnation_before: str) -> None:
        assert self._resume is not None
        try:
            reply = self._ask(websocket, "job.attach", self._resume)
        except RpcError as error:
            self._lose_session(error)
            return
        if not reply["resumed"]:
            what = (
                "the daemon was restarted"
                if incarnation_before != self.incarnation
                else "the daemon gave this rank up while the connection was away"
            )
            self._lose_session(
                ConnectionLost(f"{what}, its arenas and plan are gone; detach, attach and declare again")
            )

    def _lose_session(self, error: GradsyncError) -> None:
        self._resume = None
        with self._lock:
            self._session_error = error
            lost = [p for p in self._pending.values() if p.session]
            for pending in lost:
                del self._pending[pending.request_id]
        for pending in lost:
            pending.future.set_exception(error)

    def _die(self, error: GradsyncError) -> None:
        with self._lock:
            if self._dead is None:
                self._dead = error
            lost, self._pending = list(self._pending.values()), {}
        for pending in lost:
            pending.future.set_exception(type(error)(*error.args))

    def _handshake(self, deadline: float) -> tuple[ClientConnection, str]:
        """A new connection, and the incarnation of the daemon before it."""
        websocket, welcome = shake_hands(self.path, self.client_id, lambda: next(self._ids), deadline)
        before, self.incarnation = self.incarnation, welcome.incarnation
        self.server, self.deadlines = welcome.server, welcome.deadlines
        return websocket, before

    def _ask(self, websocket: ClientConnection, method: str, params: str) -> dict[str, Any]:
        """A request on a connection that is not in use yet."""
        return ask(websocket, self.path, next(self._ids), method, params, time.monotonic() + _HANDSHAKE_S)


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for channel in list(_channels):
        channel.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_in_child)
