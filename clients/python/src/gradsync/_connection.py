"""The socket under a channel, and the thread that reads it and comes back after a loss.

Coming back is: initialise, attach the rank again, subscribe again, send again what may be sent again. Any thread may
send. Lock order: the send lock, then that of the calls. In a forked child the connection is dead and its socket closed.
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
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from ._calls import Calls
from ._handshake import Deadlines, ask, shake_hands
from ._pending import Pending, Subscription
from ._wire import load
from .errors import ConnectionFailed, ConnectionLost, GradsyncError, ProtocolError, RpcError

__all__ = ["Connection"]

_log = logging.getLogger("gradsync")

_RECONNECT_S = 15.0
_HANDSHAKE_S = 5.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 1.0
_JITTER = random.Random()  # the program's own random numbers stay as they are


class Connection:
    """One WebSocket at a time; `calls` outlive each of them."""

    def __init__(self, path: str, calls: Calls, timeout: float) -> None:
        self.path = path
        self.ids = itertools.count(1)
        self.deadlines = Deadlines()
        self.server: dict[str, Any] = {}
        self.resume: str | None = None  # params of job.attach while a rank is attached
        self._calls = calls
        self._client_id = secrets.token_hex(16)
        self._incarnation = ""
        self._send_lock = threading.Lock()
        self._closing = threading.Event()
        websocket, _ = self._handshake(time.monotonic() + timeout)
        self._websocket: ClientConnection | None = websocket
        self._held = websocket  # for the forked child, which takes no lock
        self._thread = threading.Thread(target=self._run, args=(websocket,), name="gradsync-reader", daemon=True)
        self._thread.start()
        _live.add(self)

    @property
    def is_reader(self) -> bool:
        """Whether the caller is the reader thread, which must not wait for an answer."""
        return threading.current_thread() is self._thread

    def send(self, pending: Pending) -> None:
        """Sends a request now, or leaves it to the reader, which sends it when the connection is back."""
        with self._send_lock:
            websocket = self._websocket
            if websocket is not None and not pending.sent:
                with contextlib.suppress(ConnectionClosed):
                    _send(websocket, pending.text)
                    pending.sent = True

    def notify(self, text: str) -> None:
        """Sends a notification; while the connection is away it is dropped."""
        with self._send_lock:
            websocket = self._websocket
            if websocket is not None:
                with contextlib.suppress(ConnectionClosed):
                    _send(websocket, text)

    def close(self, *, brief: bool = False) -> None:
        """Ends the connection and its thread; `brief` without the closing handshake. Doing it again changes nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._calls.die(ConnectionLost("the client was closed; gradsync.connect() opens another"))
        websocket = self._held
        with contextlib.suppress(Exception):
            websocket.close_socket() if brief else websocket.close()
        if not self.is_reader and not brief:
            self._thread.join(_HANDSHAKE_S)

    def abandon_in_child(self) -> None:
        """In a forked child: closes the child's copy of the socket, without a word to the daemon and without a lock."""
        parent = os.getppid()
        self._closing = threading.Event()  # the old one's lock may be held by a thread that the child does not have
        self._closing.set()
        self._calls.dead = ConnectionLost(
            f"this client belongs to process {parent}, which forked this one; call gradsync.connect() in the child"
        )
        with contextlib.suppress(OSError):
            os.close(self._held.socket.detach())

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
            self._calls.die(
                ConnectionLost(f"the client's reader thread failed ({error!r}); connect, attach and declare again")
            )

    def _read(self, websocket: ClientConnection) -> str:
        try:
            while True:
                self._calls.on_message(load(websocket.recv()))
        except ConnectionClosed as closed:
            return str(closed)
        except ProtocolError as error:
            websocket.close_socket()
            return str(error)

    def _come_back(self, reason: str) -> ClientConnection | None:
        with self._send_lock:
            self._websocket = None
        self._calls.lose_connection(reason)
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
                self._calls.die(
                    ConnectionLost(
                        f"the connection to {self.path} was lost ({reason}) and does not come back: {failure}; "
                        "when the daemon runs again, connect, attach and declare again"
                    )
                )
                return None
            if self._closing.wait(delay * _JITTER.uniform(0.5, 1.0)):
                return None
            delay = min(delay * 2, _LONGEST_DELAY_S)

    def _take_over(self, websocket: ClientConnection, incarnation_before: str) -> bool:
        if self.resume is not None:
            self._resume_session(websocket, self.resume, incarnation_before)
        for subscription in self._calls.subscriptions():
            self._renew(websocket, subscription)
        with self._send_lock:
            self._held = websocket
            if self._closing.is_set():  # close() may have seen the old one
                websocket.close_socket()
            self._websocket = websocket
            try:
                for pending in self._calls.unanswered():
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

    def _resume_session(self, websocket: ClientConnection, params: str, incarnation_before: str) -> None:
        try:
            reply = self._ask(websocket, "job.attach", params)
        except RpcError as error:
            self._lose_session(error)
            return
        if not reply["resumed"]:
            what = (
                "the daemon was restarted"
                if incarnation_before != self._incarnation
                else "the daemon gave this rank up while the connection was away"
            )
            self._lose_session(
                ConnectionLost(f"{what}, its arenas and plan are gone; detach, attach and declare again")
            )

    def _lose_session(self, error: GradsyncError) -> None:
        self.resume = None
        self._calls.lose_session(error)

    def _handshake(self, deadline: float) -> tuple[ClientConnection, str]:
        """A new connection, and the incarnation of the daemon before it."""
        websocket, welcome = shake_hands(self.path, self._client_id, lambda: next(self.ids), deadline)
        before, self._incarnation = self._incarnation, welcome.incarnation
        self.server, self.deadlines = welcome.server, welcome.deadlines
        return websocket, before

    def _ask(self, websocket: ClientConnection, method: str, params: str) -> dict[str, Any]:
        """A request on a connection that is not in use yet."""
        return ask(websocket, self.path, next(self.ids), method, params, time.monotonic() + _HANDSHAKE_S)


def _send(websocket: ClientConnection, text: str) -> None:
    try:
        websocket.send(text)
    except Exception:
        raise
    except BaseException:  # Ctrl-C in the middle of a frame: the rest of the stream would be noise
        websocket.close_socket()
        raise


_live: weakref.WeakSet[Connection] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for connection in list(_live):
        connection.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_in_child)
