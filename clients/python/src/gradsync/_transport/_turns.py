"""Whose turn it is to read a connection: that of a thread which waits for its answer, or that of the reader thread.

A thread that waits reads the socket itself, so that no other thread has to wake up for it: in a trainer that would cost
more than the call. The reader thread reads while no other thread waits, unless calls follow each other closely: after
a call the turn is lent to the next one for a while. No thread holds the lock while it reads. A thread that holds it may
take the lock of the calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Turns"]

_LENT_S = 0.5  # after a call the reader thread leaves the socket to the next one for so long


class Turns:
    """At most one thread reads. A Ctrl-C may leave the turn with a thread, which takes it again with its next call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # in C: a Ctrl-C comes before it is taken or after it is given back
        self._changed = threading.Condition(self._lock)
        self._holder: int | None = None  # the thread that reads now
        self._lent_until = 0.0  # the reader thread reads no sooner
        self._passed = False  # a thread found the turn taken and counts on others, though the turn is lent to it

    def lend(self) -> None:
        """The reader thread stays aside: the thread that waits for the next answer will read it."""
        self._lent_until = time.monotonic() + _LENT_S

    def call_reader(self) -> None:
        """The reader thread reads as soon as no other thread does."""
        with self._lock:
            self._lent_until = 0.0
            self._changed.notify_all()

    def take(self) -> bool:
        """Gives the turn to the calling thread, unless another thread has it; whether it did."""
        with self._lock:
            taken = self._take()
            self._passed = self._passed or not taken
            return taken

    def _take(self) -> bool:
        if self._holder is None:
            self._holder = threading.get_ident()
        return self._holder == threading.get_ident()

    def give_back(self, may_lend: Callable[[], bool]) -> None:
        """Ends the turn of the calling thread, if it has it: the turn is lent to the next call or goes to the reader.

        `may_lend` is asked under the lock, so that a thread which found the turn taken is among those that wait.
        """
        if self._holder != threading.get_ident():
            return
        with self._lock:
            self._holder, self._passed = None, False
            if may_lend():
                self.lend()
            else:
                self.call_reader()

    @contextmanager
    def of_reader(self, closing: threading.Event, is_awaited: Callable[[], bool]) -> Iterator[None]:
        """The turn of the reader thread, which calls this; it sleeps while the turn is taken or lent.

        `is_awaited`: whether a call has no answer yet. It is asked where the thread that the turn is lent to may not
        read, because it found the turn taken.
        """
        with self._lock:
            while True:
                left = self._lent_until - time.monotonic()
                at_once = left <= 0 or closing.is_set() or (self._passed and is_awaited())
                if at_once and self._take():
                    self._passed = False
                    break
                self._changed.wait(left if left > 0 else _LENT_S)
        try:
            yield
        finally:
            self._holder = None
