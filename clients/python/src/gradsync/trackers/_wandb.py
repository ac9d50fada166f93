"""Weights & Biases: `run.log`, against a step of gradsync's own.

W&B refuses steps that are smaller than its newest one, and a training script that logs by itself has moved on when a
record comes. So a record carries its step as `gradsync_step`, which W&B is told to plot by, and joins the row that the
script is filling.
"""

from __future__ import annotations

import importlib
from collections import deque
from typing import Any

from ._record import Record

__all__ = ["WandbTarget"]

_STEP = "gradsync_step"


class WandbTarget:
    """The run that is active at the first record, or `run`, else one of its own, as `wandb.init()` makes it."""

    more = False

    def __init__(self, run: Any = None) -> None:
        """Imports wandb.

        Raises:
            ImportError: it is not installed.
        """
        self.name = "W&B"
        self._wandb: Any = importlib.import_module("wandb")
        self._run = run
        self._own = False
        self._defined: set[str] = set()
        self._row = -1  # the row of the script that the last record joined

    def begin(self) -> None:
        """A run that the script has begun meanwhile is the one."""
        if self._run is None:
            self._run = self._wandb.run

    def send(self, records: deque[Record]) -> None:
        if self._run is None:
            self._run, self._own = self._wandb.init(), True
        while records:
            record = records[0]
            self._define(record)
            values = {**record.values, _STEP: record.step}
            if self._own:
                self._run.log(values)
            else:
                if self._run.step == self._row:  # the script has not gone on: what joined its row would be replaced
                    self._run.log({}, commit=True)
                self._run.log(values, commit=False)
                self._row = self._run.step
            records.popleft()

    def close(self) -> None:
        if self._own:
            self._run.finish()

    def _define(self, record: Record) -> None:
        new = record.values.keys() - self._defined
        if new and not self._defined:
            self._run.define_metric(_STEP, hidden=True)
        for name in sorted(new):
            self._run.define_metric(name, step_metric=_STEP)
        self._defined |= new
