"""The socket under a channel, and how it comes back after a loss.

A thread that waits for an answer reads the socket itself when it is its turn (`_turns.py`). The reader thread reads
always while there are subscriptions. After a loss it connects again: it says again what comes first (`Opening`),
subscribes again, and sends again what may be sent again.

Any thread may send. Lock order: the send lock, the turn, then that of the calls or of the WebSocket. In a forked child
the connection is dead and its socket closed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, Protocol

from websockets.exceptions import ConnectionClosed

from gradsync._wire import load, request
from gradsync.errors import ConnectionFailed, ConnectionLost, GradsyncError, ProtocolError, RpcError

from ._calls import Calls, Pending, Subscription
from ._handshake import ask, shake_hands
from ._turns import Turns
from ._websocket import SLICE_S, WebSocket

__all__ = ["Afterwards", "Ask", "Connection", "Opening"]

_log = logging.getLogger("gradsync")

_RECONNECT_S = 60.0  # without a daemon, all losses since the patience was renewed
_HANDSHAKE_S = 5.0
_CLOSE_S = 2.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.02, 1.0
_JITTER = random.Random()  # the program's own random numbers stay as they are


# A request, by method and params, and its result, on a connection that no other thread uses yet.
Ask = Callable[[str, Mapping[str, Any]], dict[str, Any]]
# Asked when a connection comes into use: a request to be sent first, to which the answer does not matter, or None.
Afterwards = Callable[[], tuple[str, Mapping[str, Any]] | None]


class Opening(Protocol):
    """What is said first on each connection."""

    @property
    def holds_something(self) -> bool:
        """Whether losses add up until `renew_patience`; else each has the full time."""

    def open(self, ask: Ask) -> Afterwards:
        """Says it on a new connection, which what it raises ends; after a loss another one may be tried."""


class Connection:
    """One WebSocket at a time; `calls` outlive each of them."""

    def __init__(self, path: str, calls: Calls, opening: Opening, timeout: float) -> None:
        self.path = path
        self.ids = itertools.count(1)
        self._calls = calls
        self._opening = opening
        self._patience_s = _RECONNECT_S
        self._send_lock = threading.Lock()
        self._closing = threading.Event()
        self._turns = Turns()
        deadline = time.monotonic() + timeout
        self._websocket, _ = self._open(lambda: deadline)  # the last one, which may be lost
        self.thread = threading.Thread(target=self._run, name="gradsync-reader", daemon=True)
        self.thread.start()
        _live.add(self)

    def renew_patience(self) -> None:
        """The next loss has the full time to reconnect."""
        self._patience_s = _RECONNECT_S

    def send(self, text: str, pending: Pending | None = None, *, wait: bool = True) -> None:
        """Sends a request (`pending`) or a notification.

        While the connection is away a notification is dropped, and a request is left to the reader thread, which sends
        it when the connection is back. Without `wait` bytes that the socket does not take now go with the next message.
        """
        if pending is not None:
            if self._calls.subscriptions:
                self._turns.call_reader()
            else:
                self._turns.lend()
        with self._send_lock:
            if pending is not None and (pending.sent or pending.done()):  # the reader thread was faster
                return
            websocket = self._websocket
            with contextlib.suppress(ConnectionClosed):  # the thread that reads finds it as well
                websocket.send(text)
                if pending is not None:
                    pending.sent = True
        if wait:
            websocket.drain()

    def wait(self, pending: Pending, timeout: float) -> bool:
        """Whether the answer to what was sent is there within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not pending.done():
            within = max(0.0, min(SLICE_S, deadline - time.monotonic()))
            if not self._read_for(pending, within):
                with contextlib.suppress(futures.TimeoutError):  # another thread brings the answer
                    pending.exception(within)
            if time.monotonic() >= deadline:
                break
        return pending.done()

    def close(self, *, brief: bool = False) -> None:
        """Ends the connection and its thread; `brief` without the closing handshake. Doing it again changes nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._calls.die(ConnectionLost("the client was closed; gradsync.connect() opens another"))
        websocket = self._websocket
        if brief:
            websocket.give_up("closed")
        else:
            websocket.send_close()
        self._turns.give_back(lambda: False)  # a Ctrl-C may have left it with this thread
        self._turns.call_reader()
        if threading.current_thread() is not self.thread and not brief:
            self.thread.join(_CLOSE_S)
            websocket.give_up("closed")
            self.thread.join(_HANDSHAKE_S)

    def abandon_in_child(self) -> None:
        """Closes a forked child's copy of the socket; it sends nothing to the daemon and takes no lock."""
        parent = os.getppid()
        self._closing = threading.Event()  # the old one's lock may be held by a thread that the child does not have
        self._closing.set()
        self._calls.dead = ConnectionLost(
            f"this client belongs to process {parent}, which forked this one; call gradsync.connect() in the child"
        )
        with contextlib.suppress(OSError):
            os.close(self._websocket.socket.detach())

    # reading

    def _read_for(self, pending: Pending, timeout: float) -> bool:
        """Reads what comes within `timeout`; False where another thread reads, or none can."""
        orderly = False
        try:
            if self._turns.take() and not self._calls.subscriptions:
                self._serve(timeout)
                orderly = True
        except ConnectionClosed:
            pass  # the reader thread finds it as well
        finally:
            self._turns.give_back(lambda: orderly and self._calls.is_alone(pending.request_id))
        return orderly

    def _serve(self, timeout: float | None) -> None:
        """Waits for a message and hands it over; the calling thread has the turn.

        Raises:
            ConnectionClosed: there are no more.
        """
        websocket = self._websocket
        if not websocket.readable(timeout):  # a Ctrl-C here loses nothing: no byte was read
            return
        try:
            if (message := websocket.receive()) is not None:
                self._calls.on_message(load(message))
        except ConnectionClosed:
            raise
        except ProtocolError as error:
            websocket.give_up(str(error))
        except Exception as error:  # a defect, here or in an answer: no thread may wait for an answer any more
            self._fail(error)
            websocket.give_up("the client failed")
        except BaseException:  # after Ctrl-C a message may be lost
            websocket.give_up("interrupted while reading")
            raise

    def _fail(self, error: Exception) -> None:
        _log.error("reading from %s failed", self.path, exc_info=error)
        self._closing.set()
        self._calls.die(ConnectionLost(f"the client failed ({error!r}); connect, attach and declare again"))

    # the reader thread

    def _run(self) -> None:
        try:
            there = True
            while there:
                # Until the connection is back, if it is lost.
                with self._turns.of_reader(self._closing, self._calls.are_awaited):
                    try:
                        self._serve(None)
                    except ConnectionClosed as error:
                        reason = self._websocket.reason(error)
                        self._dispose()
                        there = not self._closing.is_set() and self._come_back(reason)
        except Exception as error:
            self._fail(error)
        finally:
            self._dispose()

    def _dispose(self) -> None:
        with self._send_lock:  # what a thread has just sent counts as lost too
            self._websocket.dispose()

    def _come_back(self, reason: str) -> bool:
        """Connects until it succeeds; False where the client is closed, or has lost its patience and is dead now."""
        self._calls.lose_connection(reason)
        _log.warning("connection to %s lost (%s); connecting again", self.path, reason)
        if not self._opening.holds_something:
            self.renew_patience()
        lost_at = time.monotonic()
        deadline = lost_at + self._patience_s
        delay = _FIRST_DELAY_S
        while True:
            try:
                self._connect(deadline)
                self._patience_s -= time.monotonic() - lost_at
                return True
            except GradsyncError as failure:
                final = isinstance(failure, ConnectionFailed) and failure.reason in ("version", "refused", "permission")
                if final or time.monotonic() + delay > deadline:
                    text = f"the connection to {self.path} was lost ({reason}) and does not come back: {failure}"
                    advice = "when the daemon runs again, connect, attach and declare again"
                    self._calls.die(ConnectionLost(f"{text}; {advice}"))
                    return False
            if self._closing.wait(delay * _JITTER.uniform(0.5, 1.0)):
                return False
            delay = min(delay * 2, _LONGEST_DELAY_S)

    def _connect(self, deadline: float) -> None:
        """A new connection, in use: its subscriptions are made and its requests are sent."""

        def part() -> float:
            return min(deadline, time.monotonic() + _HANDSHAKE_S)

        websocket, afterwards = self._open(part)
        try:
            for subscription in list(self._calls.subscriptions.values()):
                self._renew(websocket, subscription, part())
            with self._send_lock:
                self._take_over(websocket, afterwards)
        except BaseException:
            websocket.dispose()
            raise
        _log.warning("connection to %s is back", self.path)

    def _take_over(self, websocket: WebSocket, afterwards: Afterwards) -> None:
        self._websocket = websocket
        try:
            if (first := afterwards()) is not None:
                websocket.send(request(next(self.ids), *first))
            if self._closing.is_set():  # close() may have seen the old one
                raise ConnectionLost("the client was closed")
            for pending in self._calls.unanswered():
                websocket.send(pending.text)
                pending.sent = True
        except ConnectionClosed as error:
            self._calls.lose_connection(str(error))
            raise ConnectionLost("the new connection was lost at once") from error
        self._turns.call_reader()

    def _renew(self, websocket: WebSocket, subscription: Subscription, deadline: float) -> None:
        subscription.wire_id = None
        try:
            reply = self._ask(websocket, "events.subscribe", subscription.params, deadline)
            subscription.wire_id = reply["subscription"]
        except RpcError as error:
            _log.warning("a subscription ended with the lost connection: %s", error)

    def _open(self, deadline: Callable[[], float]) -> tuple[WebSocket, Afterwards]:
        """A new connection on which all is said that comes first; `deadline` is asked for each part."""
        websocket = shake_hands(self.path, deadline())
        try:
            return websocket, self._opening.open(
                lambda method, params: self._ask(websocket, method, params, deadline())
            )
        except BaseException:
            websocket.dispose()
            raise

    def _ask(self, websocket: WebSocket, method: str, params: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        return ask(websocket, self.path, next(self.ids), method, params, deadline)


_live: weakref.WeakSet[Connection] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for connection in list(_live):
        connection.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_in_child)
