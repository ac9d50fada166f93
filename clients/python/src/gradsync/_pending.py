"""What a channel remembers of calls under way."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import ConnectionLost

__all__ = ["NOTHING", "SLICE_S", "Pending", "SessionMoved", "Subscription"]

SLICE_S = 0.5  # Ctrl-C is looked at this often, whichever thread got the signal

NOTHING = object()


class SessionMoved(ConnectionLost):
    """The rank is attached to another daemon now, which knows nothing of its memory and of its plan."""


@dataclass(slots=True)
class Pending:
    """A request without an answer yet."""

    request_id: int
    text: str
    method: str
    idempotent: bool  # may be sent again after a lost connection
    session: bool  # belongs to the attached rank: fails when the rank is lost
    seat: str | None = None  # of the session: the daemon it is meant for, None where it means the same to all
    future: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)
    sent: bool = False


@dataclass(slots=True)
class Subscription:
    """Pushes wanted; the daemon's id of it changes with the connection."""

    params: str
    callback: Callable[[dict[str, Any]], None]
    wire_id: int | None = None
