"""What `attach` and `init` return has one of these: which of its reports go to which trackers.

Every rank has one, so that a script is the same everywhere; on all ranks but 0 it only checks what it is given.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from gradsync._step._report import StepReport
from gradsync.errors import UsageError

from ._feed import END_S, Feed, Target
from ._record import record_of
from ._targets import Make, target_of

__all__ = ["LogTo", "LogsReports", "ReportLog", "check_log_to"]

_log = logging.getLogger("gradsync")
LogTo = object  # names, objects, or a list of them; see docs/trackers.md


@dataclass(slots=True)
class _Chosen:
    """What of the reports goes into a feed."""

    feed: Feed
    every: int
    groups: bool
    layers: bool
    first_step: int | None
    shift: int | None = None  # from the job's steps to those of the tracker


def in_list(log_to: LogTo) -> list[object]:
    """Several trackers are given as a list or a tuple."""
    if log_to is None:
        return []
    return list(log_to) if isinstance(log_to, (list, tuple)) else [log_to]


class ReportLog:
    """The trackers of one rank. Calls belong to the training thread; none but `add` raises."""

    def __init__(self, rank: int, log_to: LogTo = None) -> None:
        self._rank = rank
        self._chosen: list[_Chosen] = []
        self._warned = False
        for one in in_list(log_to):
            self.add(one)

    def __bool__(self) -> bool:
        """Whether anything is logged here."""
        return bool(self._chosen)

    def add(
        self,
        target: object,
        *,
        every: int = 50,
        groups: bool = False,
        layers: bool = False,
        first_step: int | None = None,
    ) -> None:
        """`LogsReports.log_to`."""
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"log_to(every={every!r}): give steps, 1 or more")
        if first_step is not None and (isinstance(first_step, bool) or not isinstance(first_step, int)):
            raise UsageError(f"log_to(first_step={first_step!r}): give the number of a step, or None")
        make = target_of(target, first_step)
        if self._rank == 0:
            self._chosen.append(_Chosen(Feed(_made(make, target)), every, groups, layers, first_step))

    def log(self, step: int, report: Callable[[], StepReport | None]) -> None:
        """Logs a step that is done, where it is due. `report` is only called then, because decoding takes time."""
        for one in self._chosen:
            try:
                if one.shift is None:
                    one.shift = 0 if one.first_step is None else one.first_step - step
                number = step + one.shift
                if number % one.every == 0 and (found := report()) is not None:
                    more = one.feed.target.more
                    one.feed.put(record_of(number, found, groups=one.groups, layers=one.layers, more=more))
            except Exception as error:
                if not self._warned:
                    self._warned = True
                    name = one.feed.target.name
                    _log.warning("step %d cannot be logged to %s (%r); training goes on", step, name, error)

    def close(self, *, brief: bool = False) -> None:
        """Sends what waits, for at most `END_S` in all; `brief`, after a Ctrl-C, for a tenth of it."""
        chosen, self._chosen = self._chosen, []
        for one in chosen:
            one.feed.end()
        until = time.monotonic() + (END_S / 10 if brief else END_S)
        for one in chosen:
            one.feed.close(max(0.0, until - time.monotonic()))


class LogsReports:
    """The base of what `attach` and `init` return."""

    _log = ReportLog(1)  # one that logs nothing

    def log_to(
        self,
        target: object,
        *,
        every: int = 50,
        groups: bool = False,
        layers: bool = False,
        first_step: int | None = None,
    ) -> None:
        """Logs the reports of rank 0 to one more tracker from the next step on; every rank calls it.

        Args:
            target: "mlflow", "tensorboard", "wandb", a path ending in .jsonl, or a tracker of your own.
            every: steps; those whose number is a multiple of it are logged.
            groups, layers: also the norm of each clip group, of each layer.
            first_step: the number of the next step in the tracker, where a run is resumed; default the job's own.

        Raises:
            UsageError: it is no tracker, its package is not installed, or a number is none that can be.
        """
        self._log.add(target, every=every, groups=groups, layers=layers, first_step=first_step)


def check_log_to(log_to: LogTo) -> None:
    """Raises UsageError where something is no tracker, before any other rank waits for this one."""
    for one in in_list(log_to):
        target_of(one, None)


def _made(make: Make, target: object) -> Target:
    try:
        return make()
    except ImportError as error:
        raise UsageError(f"log_to={target!r} cannot be imported: {error}") from error
