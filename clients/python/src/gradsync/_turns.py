"""Whose turn it is to read a connection: that of a thread which waits for its answer, or that of the reader thread.

A thread that waits reads the socket itself: no other thread has to wake up for it, which in a trainer costs more than
the call. The reader thread reads while nobody waits, unless calls follow each other closely: after a call the turn is
lent to the next one for a while. Nobody holds the lock while he reads; that of the calls may be taken inside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Turns"]

_LENT_S = 0.5  # after a call the reader thread leaves the socket to the next one for so long


class Turns:
    """At most one thread reads. A Ctrl-C may leave the turn with a thread, which takes it again with its next call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._of: int | None = None  # the thread that reads now
        self._lent_until = 0.0  # the reader thread reads no sooner

    def lend(self) -> None:
        """The reader thread stays aside: an answer will be read by who waits for it."""
        self._lent_until = time.monotonic() + _LENT_S

    @property
    def is_lent(self) -> bool:
        """Whether nobody reads, and the reader thread will in a moment."""
        return self._of is None and time.monotonic() < self._lent_until

    def call_reader(self) -> None:
        """The reader thread reads as soon as nobody else does."""
        with self._lock:
            self._lent_until = 0.0
            self._news.notify_all()

    def take(self) -> bool:
        """For who waits for an answer: whether it is his turn now."""
        me = threading.get_ident()
        with self._lock:
            if self._of is not None and self._of != me:
                return False
            self._of = me
            return True

    def give_back(self, may_lend: Callable[[], bool]) -> None:
        """The end of his turn, if he has it: lent to the next call, or the reader thread's where others wait.

        `may_lend` is asked under the lock: who finds the turn taken waits already.
        """
        if self._of != threading.get_ident():
            return
        with self._lock:
            self._of = None
            if may_lend():
                self._lent_until = time.monotonic() + _LENT_S
            else:
                self._lent_until = 0.0
                self._news.notify_all()

    def wait(self, closing: threading.Event) -> None:
        """For the reader thread: returns when it is its turn; as long as it is lent to others, it sleeps."""
        with self._lock:
            while True:
                left = self._lent_until - time.monotonic()
                if self._of is None and (left <= 0 or closing.is_set()):
                    self._of = threading.get_ident()
                    return
                self._news.wait(left if left > 0 else _LENT_S)

    def done(self) -> None:
        """The end of the reader thread's turn; it may take the next one at once."""
        with self._lock:
            self._of = None

    def leave(self) -> None:
        """Whoever calls reads no more, whatever a Ctrl-C left; the reader thread reads to the end."""
        if self._of == threading.get_ident():
            self._of = None
        self.call_reader()
