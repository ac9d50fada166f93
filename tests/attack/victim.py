"""Two ranks of another process, which step as fast as they can while a test attacks their daemon.

`ATTACK_SECONDS` is how long an attack that can go on goes on; by default it ends as soon as it has been seen to fail.
`python tests/attack/measure.py` prints what the attacks cost the victim."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from ctypes import Array, c_double
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

from raw import RawRank, declare_all
from stepper import Stepper
from walkers import PROCESSES

SECONDS = float(os.environ.get("ATTACK_SECONDS", "0"))
RANKS, NUMEL = 2, 1024


def _stepping(address: str, times: Array[c_double], done: Synchronized[int], stop: Event) -> None:
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(RawRank(address, "victim", rank, RANKS)) for rank in range(RANKS)]
        declare_all(ranks, ["w"], NUMEL)
        begin = time.perf_counter()
        for step in range(10**9):
            for rank in ranks:
                rank.fill(1.0)
            asked = [rank.ask_finish(step) for rank in ranks]
            reports = [rank.finished(number) for rank, number in zip(ranks, asked, strict=True)]
            assert all("norm" in report for report in reports), reports
            assert all(rank.values[0] == RANKS for rank in ranks)
            now = time.perf_counter()
            times[step % len(times)] = now - begin
            begin = now
            done.value = step + 1
            if stop.is_set():
                return


class Victim(Stepper):
    """A step with a wrong sum ends its process."""

    def __init__(self, address: str) -> None:
        self._times = PROCESSES.Array("d", 1 << 16, lock=False)
        super().__init__("victim", _stepping, address, self._times)

    def step_times(self, since: int) -> list[float]:
        """Seconds of each step since that one, in order of size; the last 65,536 at most."""
        last = self.steps
        first = max(since, last - len(self._times) + 1)
        return sorted(self._times[step % len(self._times)] for step in range(first, last))


def lasts(begin: float) -> bool:
    """Whether an attack that began then goes on."""
    return time.monotonic() - begin < SECONDS


def goes_on_for(least: int) -> Iterator[int]:
    """Counts to that number, and further while an attack goes on."""
    begin, number = time.monotonic(), 0
    while number < least or lasts(begin):
        yield number
        number += 1
