"""Whether a thread waits for an answer awake: it looks again and again and lets others run, instead of sleeping.

A CPU that everybody sleeps on goes idle, and waking a thread there costs tens of microseconds, far more in a guest.
Steps of a fraction of a millisecond gain a fifth by it (docs/performance.md, "A small step"). What is not such a step
gains nothing or loses: sooner answers, calls that follow each other at once, later answers, which are worth no CPU,
and more ranks than there are CPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SHORT_S", "Awake", "available_cpus"]

SHORT_S = 100e-6  #: answers that come sooner need not be noted where none was that took longer

_FROM_S, _UNTIL_S = 300e-6, 2e-3
_IN_A_ROW = 2  # so many answers that took that long, before one is waited for awake
_APART_S = 1e-3  # between an answer and the next call: the program computes there
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container that sees its own cgroup


class Awake:
    """Of one connection; threads may disagree about it without harm."""

    def __init__(self) -> None:
        self.in_a_row = 0  #: answers that took neither short nor long, and nothing between them
        self._answered = 0.0
        self._spare = False

    def seat(self, ranks: int) -> None:
        """This is one of so many ranks of a job, which compete for the CPUs."""
        self._spare = ranks <= available_cpus()

    def until(self, now: float) -> float:
        """Until when, by the monotonic clock, the answer to a call that begins now is waited for awake; 0: not."""
        if self.in_a_row < _IN_A_ROW or not self._spare or now - self._answered < _APART_S:
            return 0.0
        return now + _UNTIL_S

    def end(self, began: float, took: float, answered: bool) -> None:
        """A call has its answer after `took` seconds, or is not waited for any longer."""
        self._answered = began + took
        # Awake it comes sooner, and shall not undo itself by that.
        shortest = _FROM_S if self.in_a_row < _IN_A_ROW else _FROM_S / 2
        self.in_a_row = self.in_a_row + 1 if shortest <= took <= _UNTIL_S and answered else 0


def available_cpus() -> float:
    """What affinity and the quota of the container leave to this process."""
    cpus = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = _QUOTA.read_text().split()
        return cpus if quota == "max" else min(cpus, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cpus
