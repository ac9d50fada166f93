"""The socket under a channel, and how it comes back after a loss.

A thread that waits for an answer reads the socket itself when it is its turn (`_turns.py`). The reader thread reads
always while there are subscriptions; and it comes back after a loss: initialise, attach the rank again, subscribe
again, send again what may be sent again.

Any thread may send. Lock order: the send lock, the turn, then that of the calls or of the WebSocket. In a forked child
the connection is dead and its socket closed.
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

from ._awake import SHORT_S, Awake
from ._calls import Calls
from ._handshake import Deadlines, ask, shake_hands
from ._pending import NOTHING, SLICE_S, Pending, Subscription
from ._turns import Turns
from ._websocket import WebSocket
from ._wire import load
from .errors import ConnectionFailed, ConnectionLost, Draining, GradsyncError, ProtocolError, RpcError

__all__ = ["Connection"]

_log = logging.getLogger("gradsync")

_RECONNECT_S = 60.0  # without a daemon, all losses since the last step added up
_HANDSHAKE_S = 5.0
_CLOSE_S = 2.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 1.0
_JITTER = random.Random()  # the program's own random numbers stay as they are


class Connection:
    """One WebSocket at a time; `calls` outlive each of them."""

    def __init__(self, path: str, calls: Calls, timeout: float) -> None:
        self.path = path
        self.ids = itertools.count(1)
        self.deadlines = Deadlines()
        self.server: dict[str, Any] = {}
        self.paused = False  # whether the attached rank is
        self.losses = 0
        self._awake = Awake()
        self._attach: str | None = None  # params of job.attach while a rank is attached
        self._calls = calls
        self._client_id = secrets.token_hex(16)
        self._incarnation = ""  # of the daemon
        self._patience_s = _RECONNECT_S
        self._send_lock = threading.Lock()
        self._closing = threading.Event()
        self._turns = Turns()  # of reading
        websocket = self._handshake(time.monotonic() + timeout)
        self._websocket: WebSocket | None = websocket
        self._held = websocket  # for the forked child, which takes no lock
        self.reader: int | None = None  #: the thread that reads, which must not wait for an answer
        self._thread = threading.Thread(target=self._run, args=(websocket,), name="gradsync-reader", daemon=True)
        self._thread.start()
        _live.add(self)

    def hold_seat(self, params: str) -> None:
        """The params of a job.attach that succeeded: after a loss the rank is attached again."""
        self._attach = params
        self._awake.seat(load(params)["world_size"])
        self.paused = False
        self._calls.seat = self._incarnation

    def drop_seat(self) -> None:
        """The rank is not attached again after a loss."""
        self._attach = None

    @property
    def has_seat(self) -> bool:
        """Whether a rank is attached."""
        return self._attach is not None

    @property
    def is_away(self) -> bool:
        """Whether there is no connection at the moment; it comes back, or all calls end."""
        return self._websocket is None

    def renew_patience(self) -> None:
        """The next loss has all the time to come back."""
        self._patience_s = _RECONNECT_S

    def send(self, pending: Pending, *, wait: bool = True, instead: bool = False) -> None:
        """Sends a request now, or leaves it to the reader thread, which sends it when the connection is back.

        Without `wait` what the socket does not take at once goes with the next message. `instead`: of what is kept.
        """
        self._lend()
        with self._send_lock:
            websocket = self._websocket
            if websocket is None or pending.sent:
                return
            try:
                websocket.send(pending.text, instead=instead)
                pending.sent = True
            except ConnectionClosed:  # who reads finds it as well
                return
        if wait:
            websocket.drain()

    def notify(self, text: str, *, keep: bool = False) -> None:
        """Sends a notification; while the connection is away it is dropped.

        With `keep` it waits for the call that is about to follow, which may be sent instead. Only where calls follow
        each other closely, and no longer than until the reader thread takes its turn, which is half a second.
        """
        with self._send_lock:
            websocket = self._websocket
            if websocket is None:
                return
            if keep and self._turns.is_lent:
                websocket.keep(text)
                if self._turns.is_lent:  # still: who begins to read now sees what is kept
                    return
                websocket.send_kept()
            else:
                with contextlib.suppress(ConnectionClosed):
                    websocket.send(text)
        websocket.drain()

    def wait(self, pending: Pending, timeout: float) -> Any:
        """The result of what was sent, or NOTHING after `timeout` seconds.

        Raises:
            GradsyncError: what the daemon answered, or what was lost.
        """
        began = time.monotonic()
        awake = self._awake
        awake_until = awake.until(began) if awake.in_a_row else 0.0
        left = timeout
        while not pending.done:
            within = max(0.0, min(SLICE_S, left))
            if not self._read_for(pending, within, awake_until):
                pending.wait(within)
            left = began + timeout - time.monotonic()
            if left <= 0:
                break
        if awake.in_a_row or timeout - left > SHORT_S:  # not for a step of microseconds
            awake.end(began, timeout - left, pending.done)
        return pending.result() if pending.done else NOTHING

    def close(self, *, brief: bool = False) -> None:
        """Ends the connection and its thread; `brief` without the closing handshake. Doing it again changes nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._calls.die(ConnectionLost("the client was closed; gradsync.connect() opens another"))
        websocket = self._held
        if brief:
            websocket.give_up("closed")
        else:
            websocket.send_close()
        self._turns.leave()
        if self.reader != threading.get_ident() and not brief:
            self._thread.join(_CLOSE_S)
            websocket.give_up("closed")
            self._thread.join(_HANDSHAKE_S)

    def abandon_in_child(self) -> None:
        """In a forked child: closes the child's copy of the socket, without a word to the daemon and without a lock."""
        parent = os.getppid()
        self._closing = threading.Event()  # the old one's lock may be held by a thread that the child does not have
        self._closing.set()
        self.reader = None  # its number may be another thread's here
        self._calls.dead = ConnectionLost(
            f"this client belongs to process {parent}, which forked this one; call gradsync.connect() in the child"
        )
        with contextlib.suppress(OSError):
            os.close(self._held.socket.detach())

    # reading

    def _lend(self) -> None:
        if self._calls.subscribed:
            self._turns.call_reader()
        else:
            self._turns.lend()

    def _read_for(self, pending: Pending, timeout: float, awake_until: float) -> bool:
        """Reads until its answer came or `timeout` is over; False where somebody else reads, or nobody can."""
        orderly = False
        try:
            if not self._turns.take():
                return False
            websocket = self._websocket  # not disposed of in this turn
            if websocket is None or self._calls.subscribed:
                return False
            deadline = time.monotonic() + timeout
            while not pending.done and not self._calls.subscribed:
                self._serve(websocket, max(0.0, deadline - time.monotonic()), awake_until)
                if time.monotonic() >= deadline:
                    break
            orderly = True
            return True
        except ConnectionClosed:
            return False
        finally:
            self._turns.give_back(lambda: orderly and self._calls.is_alone(pending.request_id))

    def _serve(self, websocket: WebSocket, timeout: float | None, awake_until: float = 0.0) -> None:
        """Waits for messages, and hands over what came.

        Raises:
            ConnectionClosed: there are no more.
        """
        if not websocket.readable(timeout, awake_until):
            return
        try:
            message = websocket.receive()
            while message is not None:
                self._calls.on_message(load(message))
                message = websocket.receive() if websocket.has_more else None
        except ConnectionClosed:
            raise
        except ProtocolError as error:
            websocket.give_up(str(error))
        except Exception as error:  # a defect, here or in an answer: nobody may wait for what is never read
            self._fail(error)
            websocket.give_up("the client failed")
        except BaseException:  # Ctrl-C: a message may be lost
            websocket.give_up("interrupted while reading")
            raise

    def _fail(self, error: Exception) -> None:
        _log.error("reading from %s failed", self.path, exc_info=error)
        self._closing.set()
        self._calls.die(ConnectionLost(f"the client failed ({error!r}); connect, attach and declare again"))

    # the reader thread

    def _run(self, websocket: WebSocket) -> None:
        current: WebSocket | None = websocket
        self.reader = threading.get_ident()
        try:
            while current is not None:
                reason = self._read(current)
                if self._closing.is_set():
                    return
                current = self._come_back(reason)
        except Exception as error:
            self._fail(error)
        finally:
            with self._send_lock:
                self._websocket = None
            self._held.dispose()
            self.reader = None  # the next thread may be given its number

    def _read(self, websocket: WebSocket) -> str:
        while True:
            self._turns.wait(self._closing)
            closed = ""
            try:
                self._serve(websocket, None)
            except ConnectionClosed as error:
                closed = websocket.reason(error)
                with self._send_lock:
                    self._websocket = None
                websocket.dispose()
            finally:
                self._turns.done()
            if closed:
                return closed

    def _come_back(self, reason: str) -> WebSocket | None:
        self._calls.lose_connection(reason)
        _log.warning("connection to %s lost (%s); connecting again", self.path, reason)
        self.losses += 1
        if self._attach is None:
            self.renew_patience()
        lost_at = time.monotonic()
        deadline = lost_at + self._patience_s
        delay = _FIRST_DELAY_S
        while True:
            try:
                websocket = self._handshake(min(deadline, time.monotonic() + _HANDSHAKE_S))
                try:
                    if self._take_over(websocket):
                        self._patience_s -= time.monotonic() - lost_at
                        return websocket
                except BaseException:
                    websocket.dispose()
                    raise
                websocket.dispose()
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

    def _take_over(self, websocket: WebSocket) -> bool:
        if self._attach is not None:
            self._resume_session(websocket, self._attach)
        for subscription in self._calls.subscriptions():
            self._renew(websocket, subscription)
        with self._send_lock:
            self._held = websocket
            if self._closing.is_set():  # close() may have seen the old one
                return False
            try:
                for pending in self._calls.unanswered():
                    websocket.send(pending.text)
                    pending.sent = True
            except ConnectionClosed as error:
                self._calls.lose_connection(str(error))
                return False
            self._turns.call_reader()
            self._websocket = websocket
        _log.warning("connection to %s is back", self.path)
        return True

    def _renew(self, websocket: WebSocket, subscription: Subscription) -> None:
        subscription.wire_id = None
        try:
            reply = self._ask(websocket, "events.subscribe", subscription.params)
            subscription.wire_id = reply["subscription"]
        except RpcError as error:
            _log.warning("a subscription ended with the lost connection: %s", error)

    def _resume_session(self, websocket: WebSocket, params: str) -> None:
        try:
            reply = self._ask(websocket, "job.attach", params)
            if self.paused:
                self._ask(websocket, "job.pause", '{"paused":true}')
        except Draining as error:  # what comes after it may take the rank
            raise ConnectionLost(str(error)) from error
        except RpcError as error:
            self._lose_session(error)
            return
        if self._calls.seat != self._incarnation:
            self._calls.move(self._incarnation)
        elif not reply["resumed"]:
            self._lose_session(
                ConnectionLost(
                    "the daemon gave this rank up while the connection was away, its arenas and plan are gone; detach, "
                    "attach and declare again"
                )
            )

    def _lose_session(self, error: GradsyncError) -> None:
        self._attach = None
        self._calls.lose_session(error)

    def _handshake(self, deadline: float) -> WebSocket:
        websocket, welcome = shake_hands(self.path, self._client_id, lambda: next(self.ids), deadline)
        self._incarnation = welcome.incarnation
        self.server, self.deadlines = welcome.server, welcome.deadlines
        return websocket

    def _ask(self, websocket: WebSocket, method: str, params: str) -> dict[str, Any]:
        """A request on a connection that is not in use yet."""
        return ask(websocket, self.path, next(self.ids), method, params, time.monotonic() + _HANDSHAKE_S)


_live: weakref.WeakSet[Connection] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for connection in list(_live):
        connection.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_in_child)
