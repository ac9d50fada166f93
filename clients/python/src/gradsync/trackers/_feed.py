"""Brings records to one tracker by a thread of its own, so that no tracker holds training up.

Thread rule: `put` and `close` belong to the training thread; the target belongs to the feed's thread, but for `begin`.

The training thread appends to a queue and wakes nobody up. The feed's thread looks into it once a second and sends all
that is there together: a tracker's client written in Python takes the interpreter from training while it works, so one
call for many steps is cheaper than a call for each. Where a tracker fails, records stay in the queue and are tried
again, at longer and longer intervals; the queue has a bound, beyond which the oldest are dropped. The first failure is
said when it comes, and what was lost in all is said at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from typing import Protocol

from ._record import Record

__all__ = ["CAPACITY", "Feed", "RecordsRefused", "Target"]

CAPACITY = 1000  #: records that wait for a tracker, at most; of every 50th step that is an outage of 50,000 steps
INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 60.0
END_S = 5.0  #: how long the end of a run waits for its trackers
_log = logging.getLogger("gradsync")


class Target(Protocol):
    """Where records go. `name` is what a message calls it."""

    name: str
    more: bool  #: whether it keeps what a record has beside numbers

    def begin(self) -> None:
        """Called once by the training thread, before the first record: what can only be asked there."""

    def send(self, records: deque[Record]) -> None:
        """Sends records, the oldest first, and takes each out that is sent. May block, and may raise anything."""

    def close(self) -> None:
        """Called when nothing comes any more."""


class RecordsRefused(Exception):
    """A target took records out that it could not send: they are lost."""

    def __init__(self, count: int, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.count = count


class Feed:
    """The queue of one target, and its thread, which starts with the first record."""

    def __init__(self, target: Target, *, capacity: int = CAPACITY) -> None:
        self.target = target
        self.lost = 0  #: records that were dropped or refused
        self._capacity = capacity
        self._interval_s = INTERVAL_S
        self._waiting: deque[Record] = deque()
        self._lock = threading.Lock()  # is never held while a target works
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._said: set[str] = set()
        self._put, self._sent = 0, 0  # records
        self._pid = os.getpid()

    @property
    def waits(self) -> bool:
        """Whether a record has not been sent yet."""
        with self._lock:
            return self._put > self._sent + self.lost

    def put(self, record: Record) -> None:
        """Takes a record; it is sent within about a second. After `close` it does nothing."""
        if self._ending.is_set():
            return
        with self._lock:
            self._put += 1
            self._waiting.append(record)
            full = self._shorten()
        if full:
            self._say("full", "of what waits for %s, the oldest is dropped from now on", self.target.name)
        if self._thread is None:
            self._begin()

    def end(self) -> None:
        """Nothing comes any more: the thread sends what waits at once, and ends."""
        self._ending.set()

    def close(self, timeout: float = END_S) -> None:
        """Waits `timeout` seconds at most for the end, and says what was not sent. Again, it does nothing."""
        self.end()
        atexit.unregister(self.close)
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._pid:  # a forked child has no thread of the feed
            thread.join(timeout)
            with self._lock:
                left = self._put - self._sent
            if left:
                _log.warning("%s lacks %d of the %d records of this run", self.target.name, left, self._put)

    # inside

    def _begin(self) -> None:
        try:
            self.target.begin()
        except Exception as error:
            self._failed(error)
        self._thread = threading.Thread(target=self._run, name="gradsync-tracker", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # for a script that ends without close()

    def _shorten(self) -> bool:
        """Drops the oldest records beyond the capacity; whether there were any. The lock is held."""
        beyond = len(self._waiting) - self._capacity
        for _ in range(beyond):
            self._waiting.popleft()
            self.lost += 1
        return beyond > 0

    def _say(self, kind: str, text: str, *values: object) -> None:
        """Says it, unless this kind was said before."""
        if kind not in self._said:
            self._said.add(kind)
            _log.warning(text, *values)

    def _failed(self, error: BaseException) -> None:
        text = "%s fails (%s: %s); training goes on, and up to %d records are kept for it"
        self._say("failed", text, self.target.name, type(error).__name__, str(error)[:300], self._capacity)

    # the feed's thread

    def _run(self) -> None:
        interval_s = self._interval_s
        while True:
            ending = self._ending.wait(interval_s)
            interval_s = self._interval_s if self._send() else min(2 * interval_s, LONGEST_INTERVAL_S)
            if ending:
                break
        with contextlib.suppress(Exception):
            self.target.close()

    def _send(self) -> bool:
        """Whether nothing that was there waits any more."""
        with self._lock:
            records, self._waiting = self._waiting, deque()
        before, refused = len(records), 0
        try:
            if records:
                self.target.send(records)
        except RecordsRefused as error:
            refused = error.count
            self._say("failed", "%s fails (%s); training goes on, such records are lost", self.target.name, error)
        except Exception as error:
            self._failed(error)
        with self._lock:
            self._sent += before - refused - len(records)
            self.lost += refused
            done = not records
            records.extend(self._waiting)
            self._waiting = records
            self._shorten()
        return done
