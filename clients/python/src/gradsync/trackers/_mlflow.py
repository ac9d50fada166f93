"""MLflow, by its own client: `MlflowClient.log_batch`, one call for many steps."""

from __future__ import annotations

import importlib
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from ._record import Record

__all__ = ["MlflowTarget"]

_MOST_METRICS = 1000  # that log_batch takes
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")  # in the name of a metric


class MlflowTarget:
    """The run that is active in the training thread at the first record, else `run_id`, else a run of its own.

    A run of its own is what `mlflow.start_run()` makes: `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME` and
    `MLFLOW_RUN_ID` are MLflow's. It ends with the feed.
    """

    more = False

    def __init__(self, run_id: str | None = None) -> None:
        """Imports mlflow, which takes a second or two.

        Raises:
            ImportError: it is not installed.
        """
        self.name = "MLflow"
        self._mlflow: Any = importlib.import_module("mlflow")
        self._client: Any = None
        self._run_id = run_id
        self._own = False

    def begin(self) -> None:
        """The active run is one of the calling thread."""
        if self._run_id is None:
            run = self._mlflow.active_run()
            self._run_id = None if run is None else run.info.run_id

    def send(self, records: deque[Record]) -> None:
        if self._client is None:
            self._client = self._mlflow.MlflowClient()
        if self._run_id is None:
            self._run_id, self._own = self._mlflow.start_run().info.run_id, True
        entities: Any = importlib.import_module("mlflow.entities")
        for batch, taken in _batches(records):
            metrics = [entities.Metric(name, value, at, step) for name, value, at, step in batch]
            # What was stored before its answer was lost is the same metric again, which MLflow's SQL stores ignore.
            self._client.log_batch(self._run_id, metrics=metrics, synchronous=True)
            for _ in range(taken):
                records.popleft()

    def close(self) -> None:
        if self._own:
            self._mlflow.end_run()


_Metric = tuple[str, float, int, int]


def _batches(records: deque[Record]) -> Iterator[tuple[list[_Metric], int]]:
    """What one call takes, and how many records are done with it; a record of very many layers takes several calls."""
    batch: list[_Metric] = []
    taken = 0
    for record in list(records):
        metrics = [
            (_NOT_ALLOWED.sub("_", key), value, record.time_ms, record.step) for key, value in record.values.items()
        ]
        if batch and len(batch) + len(metrics) > _MOST_METRICS:
            yield batch, taken
            batch, taken = [], 0
        while len(metrics) > _MOST_METRICS:
            yield metrics[:_MOST_METRICS], 0
            metrics = metrics[_MOST_METRICS:]
        batch += metrics
        taken += 1
    yield batch, taken
