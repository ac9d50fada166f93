"""What a channel remembers of calls under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import ConnectionLost

__all__ = ["NOTHING", "SLICE_S", "Pending", "SessionMoved", "Subscription"]

SLICE_S = 0.5  # Ctrl-C is looked at this often, whichever thread got the signal

NOTHING = object()


class SessionMoved(ConnectionLost):
    """The rank is attached to another daemon now, which knows nothing of its memory and of its plan."""


class Pending:
    """A request, and its answer once it is there: any thread may bring it, one waits for it.

    What a future does, for the common case that the thread which waits brings the answer itself.
    """

    __slots__ = (
        "_error",
        "_gate",
        "_result",
        "done",
        "idempotent",
        "method",
        "request_id",
        "seat",
        "sent",
        "session",
        "text",
    )

    def __init__(
        self, request_id: int, text: str, method: str, idempotent: bool, session: bool, seat: str | None = None
    ) -> None:
        self.request_id = request_id
        self.text = text
        self.method = method
        self.idempotent = idempotent  # may be sent again after a lost connection
        self.session = session  # belongs to the attached rank: fails when the rank is lost
        self.seat = seat  # of the session: the daemon it is meant for, None where it means the same to all
        self.sent = False
        self.done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._gate = threading.Lock()  # open once there is an answer
        self._gate.acquire()

    def answer(self, result: Any) -> None:
        """The result is there; at most once, and not after `fail`."""
        self._result = result
        self.done = True
        self._gate.release()

    def fail(self, error: BaseException) -> None:
        """There is an error instead; at most once, and not after `answer`."""
        self._error = error
        self.done = True
        self._gate.release()

    def wait(self, timeout: float) -> None:
        """Returns when another thread has brought the answer, or after `timeout` seconds."""
        if self._gate.acquire(timeout=timeout):
            self._gate.release()

    def result(self) -> Any:
        """What came, once it has; raises the error that came instead."""
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            del self  # the traceback of the error would hold it


@dataclass(slots=True)
class Subscription:
    """Pushes wanted; the daemon's id of it changes with the connection."""

    params: str
    callback: Callable[[dict[str, Any]], None]
    wire_id: int | None = None
