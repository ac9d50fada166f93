"""What a channel remembers of calls under way, and how a caller waits for one."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NOTHING", "Pending", "Subscription", "wait"]

_SLICE_S = 0.5  # Ctrl-C is looked at this often, whichever thread got the signal

NOTHING = object()


@dataclass(slots=True)
class Pending:
    """A request without an answer yet."""

    request_id: int
    text: str
    method: str
    idempotent: bool  # may be sent again after a lost connection
    session: bool  # belongs to the attached rank: fails when the rank is lost
    future: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)
    sent: bool = False


@dataclass(slots=True)
class Subscription:
    """Pushes wanted; the daemon's id of it changes with the connection."""

    params: str
    callback: Callable[[dict[str, Any]], None]
    wire_id: int | None = None


def wait(future: concurrent.futures.Future[Any], timeout: float) -> Any:
    """The result, or NOTHING after `timeout` seconds.

    Raises:
        GradsyncError: what the future holds.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            return future.result(max(0.0, min(_SLICE_S, left)))
        except concurrent.futures.TimeoutError:
            if future.done():  # the answer is itself a TimeoutError, or came just now
                return future.result()
            if left <= 0:
                return NOTHING
