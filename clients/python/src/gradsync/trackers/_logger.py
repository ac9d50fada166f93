"""Hands step reports to trackers: on rank 0 only, every so many steps, and without ever raising."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Protocol

from gradsync._step._report import StepReport

__all__ = ["Logger", "Tracker", "measurements"]

_log = logging.getLogger("gradsync")


class Tracker(Protocol):
    """Anything that takes a step and named numbers."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the values of one step."""


def measurements(report: StepReport) -> dict[str, float]:
    """The values of a report that are tracked: grad_norm, grad_clipped (0 or 1), grad_clip_threshold if there is one.

    In mode observe also grad_norm_framework, and grad_norm_difference, relative to ours, where there is one.
    """
    values = {"grad_norm": report.norm, "grad_clipped": float(report.clipped)}
    if not math.isinf(report.threshold):
        values["grad_clip_threshold"] = report.threshold
    if report.theirs is not None:
        values["grad_norm_framework"] = report.theirs
    if report.relative_difference is not None:
        values["grad_norm_difference"] = report.relative_difference
    return values


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
