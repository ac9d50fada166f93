"""The requests that wait for an answer of the daemon, and the subscriptions.

Nothing here knows of sockets. Any thread may call, and no thread waits for another one while it holds the lock. The
first error that ends the channel stays.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from gradsync._wire_errors import error_from_wire
from gradsync.errors import ConnectionLost, GradsyncError, ProtocolError

__all__ = ["Calls", "Pending", "Scope", "Subscription", "unscoped"]

_log = logging.getLogger("gradsync")


# Says why a request cannot be answered any more, None while it can. It takes no lock.
Scope = Callable[[], GradsyncError | None]


def unscoped() -> None:
    """The scope of a request that means the same whoever answers it."""


@dataclass(eq=False, repr=False)  # the text of a request may be long
class Pending(futures.Future[Any]):
    """A request, and its answer once it is there: any thread may bring it, one waits for it."""

    request_id: int
    text: str
    method: str
    idempotent: bool  # may be sent again after a lost connection
    scope: Scope = unscoped
    sent: bool = False  # over the connection that is there now
    lost: bool = False  # the connection was lost since the caller looked

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def was_away(self) -> bool:
        """Whether the connection is away, or was away since `lost` was set to False."""
        return self.lost or not self.sent


@dataclass(slots=True)
class Subscription:
    """Pushes that are wanted; the daemon's number for them changes with the connection."""

    params: Mapping[str, Any]
    callback: Callable[[dict[str, Any]], None]
    wire_id: int | None = None


class Calls:
    """The requests and subscriptions of one channel, across all its connections."""

    def __init__(self) -> None:
        self.dead: GradsyncError | None = None  # why no call can succeed any more
        self.subscriptions: dict[int, Subscription] = {}  # every operation on it is a single one of the dictionary
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}

    def check_usable(self) -> None:
        """Raises what ended the channel."""
        if self.dead is not None:
            raise copy.copy(self.dead)

    def add(self, pending: Pending) -> None:
        """From now on a thread waits for the answer; raises where none can come."""
        self.check_usable()  # a forked child goes no further: a thread that it does not have may hold the lock
        with self._lock:
            self.check_usable()
            if (error := pending.scope()) is not None:
                raise copy.copy(error)
            self._pending[pending.request_id] = pending

    def forget(self, request_id: int) -> None:
        """No thread waits for the answer any more."""
        with self._lock:
            self._pending.pop(request_id, None)

    def unanswered(self) -> list[Pending]:
        """The requests without an answer, in the order in which they were made."""
        with self._lock:
            return sorted(self._pending.values(), key=lambda pending: pending.request_id)

    def are_awaited(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._pending)

    def is_alone(self, request_id: int) -> bool:
        """Whether no other request waits for an answer, and no subscription is open."""
        with self._lock:
            return not self.subscriptions and len(self._pending) == (request_id in self._pending)

    # what came

    def on_message(self, message: Any) -> None:
        """One message of the daemon, on the thread that reads.

        Raises:
            ProtocolError: the message is not a JSON object.
        """
        if not isinstance(message, dict):
            raise ProtocolError(f"the daemon sent {message!r} where an object belongs; install both of one release")
        if "method" in message:
            self._on_push(message)
        else:
            self._on_reply(message)

    def _on_reply(self, reply: dict[str, Any]) -> None:
        request_id = reply.get("id")
        if request_id is None:
            _log.warning("the daemon could not read a message of this client: %s", reply.get("error"))
            return
        # If this raises, the request is still pending, and fails with the client.
        error = error_from_wire(reply["error"]) if "error" in reply else None
        with self._lock:
            pending = self._pending.pop(request_id, None)
        if pending is None:
            return  # its caller has gone (Ctrl-C, timeout)
        if error is not None:
            pending.set_exception(error)
        else:
            pending.set_result(reply.get("result"))

    def _on_push(self, push: dict[str, Any]) -> None:
        params = push.get("params")
        if push["method"] != "events.notification" or not isinstance(params, dict):
            return
        for subscription in list(self.subscriptions.values()):
            if subscription.wire_id == params.get("subscription"):
                try:
                    subscription.callback(params)
                except Exception:
                    _log.exception("an event callback raised; the subscription goes on")

    # what was lost

    def lose_connection(self, reason: str) -> None:
        """Fails the requests that were sent and must not be sent again; the others are not sent any more."""
        with self._lock:
            for pending in list(self._pending.values()):
                if pending.sent and not pending.idempotent:
                    del self._pending[pending.request_id]
                    text = f"the connection was lost while {pending.method} was under way ({reason}); call it again"
                    pending.set_exception(ConnectionLost(text))
                pending.sent, pending.lost = False, True

    def review(self) -> None:
        """Fails the requests that cannot be answered any more, as their scopes say now."""
        with self._lock:
            self._fail(lambda pending: pending.scope())

    def die(self, error: GradsyncError) -> None:
        """Fails everything, now and later."""
        with self._lock:
            self.dead = self.dead or error
            self._fail(lambda pending: error)

    def _fail(self, why: Callable[[Pending], GradsyncError | None]) -> None:
        for pending in list(self._pending.values()):
            if (error := why(pending)) is not None:
                del self._pending[pending.request_id]
                pending.set_exception(copy.copy(error))
