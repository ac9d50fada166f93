"""Trackers that a script has made itself: anything with a function that takes numbers and a step."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

from gradsync.errors import UsageError

from ._feed import RecordsRefused
from ._record import Record

__all__ = ["CallTarget", "call_of"]

Call = Callable[[dict[str, float], int], Any]


class CallTarget:
    """Calls a function with the values and the step of each record, on the feed's thread.

    A record that the function refuses is not given again: what is wrong with it is not known, and others wait.
    """

    more = False

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self.name = name

    def begin(self) -> None:
        """Nothing belongs to the training thread."""

    def send(self, records: deque[Record]) -> None:
        failed: Exception | None = None
        refused = 0
        while records:
            record = records.popleft()
            try:
                self._call(dict(record.values), record.step)
            except Exception as error:
                failed, refused = error, refused + 1
        if failed is not None:
            raise RecordsRefused(refused, failed)

    def close(self) -> None:
        """The object is the script's."""


def call_of(target: object) -> Call:
    """The function of a tracker that takes values and a step.

    Raises:
        UsageError: it has none.
    """
    scalar = getattr(target, "add_scalar", None)
    if callable(scalar):  # a SummaryWriter
        return lambda values, step: [scalar(name, value, step) for name, value in values.items()]
    metrics = getattr(target, "log_metrics", None)
    if callable(metrics):  # a logger of Lightning
        return lambda values, step: metrics(values, step=step)
    log: Any = getattr(target, "log", None)
    if callable(log):
        if _takes_step_first(log):  # gradsync.trackers.Tracker
            return lambda values, step: log(step, values)
        return lambda values, step: log(values, step=step)
    if callable(target):
        return lambda values, step: target(values, step)
    raise UsageError(
        f"log_to={target!r}: give 'mlflow', 'tensorboard', 'wandb', a path that ends in .jsonl, an object with "
        "log(dict, step=…), log_metrics(dict, step=…) or add_scalar(name, value, step), or a function f(dict, step)"
    )


def _takes_step_first(log: Callable[..., Any]) -> bool:
    try:
        return next(iter(inspect.signature(log).parameters), None) == "step"
    except (TypeError, ValueError):
        return False
