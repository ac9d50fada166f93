"""Hands step reports to a tracker where they are made: on rank 0 only, every so many steps, and without ever raising.

`gs.log_to(…)` does it on a thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from gradsync._step._report import StepReport

from ._record import measurements

__all__ = ["Logger", "Tracker"]

_log = logging.getLogger("gradsync")


class Tracker(Protocol):
    """Anything that takes a step and named numbers."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the values of one step."""


class Logger:
    """Passes every `every`-th report of rank 0 on to a tracker; after an outage it warns once and keeps trying."""

    def __init__(self, tracker: Tracker, *, rank: int = 0, every: int = 50) -> None:
        self._tracker = tracker
        self._rank = rank
        self._every = max(1, every)
        self._warned = False

    def log(self, report: StepReport) -> None:
        """Tracks the report if its step is due."""
        if self._rank != 0 or report.step % self._every != 0:
            return
        try:
            self._tracker.log(report.step, measurements(report))
        except Exception as error:
            if not self._warned:
                self._warned = True
                _log.warning("the tracker %r fails (%s); training goes on without it", self._tracker, error)
