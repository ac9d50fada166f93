"""What waits for the daemon: requests without an answer, and subscriptions. Sockets are not known here.

Any thread may call; nobody waits while holding the lock. The first error that ends everything, or the session, stays.
"""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

from ._pending import Pending, SessionMoved, Subscription
from ._wire_errors import error_from_wire
from .errors import ConnectionLost, GradsyncError, ProtocolError

__all__ = ["Calls"]

_log = logging.getLogger("gradsync")


class Calls:
    """The requests and subscriptions of one channel, across all its connections."""

    def __init__(self) -> None:
        self.dead: GradsyncError | None = None  # no call can succeed any more
        self.session_error: GradsyncError | None = None  # the attached rank is gone
        self.seat = ""  # incarnation of the daemon at which the rank is attached
        self.subscribed = False  # pushes may come
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._subscriptions: dict[int, Subscription] = {}

    def check_usable(self) -> None:
        """Raises what ended the channel."""
        if self.dead is not None:
            raise type(self.dead)(*self.dead.args)

    # requests

    def add(self, pending: Pending) -> None:
        """From now on somebody waits for it; raises where no answer can come."""
        if self.dead is not None:  # before the lock: in a forked child nobody may hold it for ever
            self.check_usable()
        with self._lock:
            if self.dead is not None:
                self.check_usable()
            if pending.session and self.session_error is not None:
                raise copy.copy(self.session_error)
            if pending.seat is not None and pending.seat != self.seat:
                raise _moved()
            self._pending[pending.request_id] = pending

    def forget(self, request_id: int) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._pending.pop(request_id, None)

    def unanswered(self) -> list[Pending]:
        """In the order in which they were asked."""
        with self._lock:
            return sorted(self._pending.values(), key=lambda pending: pending.request_id)

    def is_alone(self, request_id: int) -> bool:
        """Whether no other request waits for an answer, and no subscription for a push."""
        with self._lock:
            return not self._subscriptions and len(self._pending) == (request_id in self._pending)

    # subscriptions

    def add_subscription(self, key: int, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions[key] = subscription
            self.subscribed = True

    def drop_subscription(self, key: int) -> Subscription | None:
        with self._lock:
            subscription = self._subscriptions.pop(key, None)
            self.subscribed = bool(self._subscriptions)
            return subscription

    def subscriptions(self) -> list[Subscription]:
        with self._lock:
            return list(self._subscriptions.values())

    # what came

    def on_message(self, message: Any) -> None:
        """One message of the daemon, on the thread that reads.

        Raises:
            ProtocolError: it is none.
        """
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
        error = error_from_wire(reply["error"]) if "error" in reply else None  # first: what raises has to be told
        with self._lock:
            pending = self._pending.pop(request_id, None)
        if pending is None:
            return  # its caller has gone (Ctrl-C, timeout)
        if error is not None:
            pending.fail(error)
        else:
            pending.answer(reply.get("result"))

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

    # what was lost

    def lose_connection(self, reason: str) -> None:
        """Fails what was sent and must not be sent again."""
        with self._lock:
            lost = self._take([p for p in self._pending.values() if p.sent and not p.idempotent])
        for pending in lost:
            pending.fail(
                ConnectionLost(
                    f"the connection was lost while {pending.method} was under way ({reason}); call it again"
                )
            )

    def lose_session(self, error: GradsyncError) -> None:
        """Fails what belongs to the attached rank, now and later."""
        with self._lock:
            self.session_error = error
            lost = self._take([p for p in self._pending.values() if p.session])
        for pending in lost:
            pending.fail(copy.copy(error))

    def move(self, seat: str) -> None:
        """The rank is attached to this daemon now: fails what was meant for another one, now and later."""
        with self._lock:
            self.seat = seat
            lost = self._take([p for p in self._pending.values() if p.seat not in (None, seat)])
        for pending in lost:
            pending.fail(_moved())

    def _take(self, lost: list[Pending]) -> list[Pending]:
        for pending in lost:
            del self._pending[pending.request_id]
        return lost

    def die(self, error: GradsyncError) -> None:
        """Fails everything, now and later."""
        with self._lock:
            if self.dead is None:
                self.dead = error
            lost, self._pending = list(self._pending.values()), {}
        for pending in lost:
            pending.fail(type(error)(*error.args))


def _moved() -> SessionMoved:
    return SessionMoved("the daemon was restarted; call it again")
