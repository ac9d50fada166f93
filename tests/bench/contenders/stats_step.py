"""stats_step: steps of one element on data path `stats` by the raw Python API, one after the other: what is left is
what a step costs, on one node or over several. `until_again` takes steps until a daemon was lost and is back.
"""

from __future__ import annotations

import time
from typing import Any

import gradsync
from contenders.recording import recorded
from gradsync.errors import ConnectionLost, NodeLost, StaleEpoch

VALUE = 0.5  # its norm, too: all ranks hold the same element


class Contender:
    def __init__(self, rank: int, world_size: int, steps: int = 0, until_again: bool = False) -> None:
        self._client = gradsync.connect()
        self._job = self._client.attach(job="empty", rank=rank, world_size=world_size)
        self._grads = self._job.declare(
            [gradsync.Tensor("x", shape=(1,), placements={"dp": gradsync.Replicate()})],
            data_path="stats",
            clip=gradsync.Clip(max_norm=1.0),
        )
        self._row = gradsync.Row.of([VALUE])
        self._steps, self._until_again = steps, until_again
        self._norm, self._epoch, self._done_ns, self._lost = 0.0, 0, 0, 0
        self._microseconds: list[float] = []
        self._frames = recorded(self._job, self._one_step)

    def _one_step(self) -> None:
        self._grads.write("x", self._row)
        self._grads.finish()

    def fill(self) -> None:
        """There is nothing to fill."""

    def step(self) -> None:
        if self._until_again:
            self._steps_until_a_later_epoch()
            return
        self._microseconds = []
        for _ in range(self._steps):
            begin = time.perf_counter_ns()
            self._grads.write("x", self._row)
            self._norm = self._grads.finish().norm
            self._microseconds.append((time.perf_counter_ns() - begin) / 1e3)

    def _steps_until_a_later_epoch(self) -> None:
        """As a trainer does that computes a step again when it was lost; every verdict is that of all ranks."""
        self._lost = 0
        while True:
            self._grads.write("x", self._row)
            try:
                report = self._grads.finish()
            except (NodeLost, StaleEpoch, ConnectionLost):
                self._lost += 1
                continue
            self._norm = report.norm
            if report.epoch > self._epoch:
                self._epoch, self._done_ns = report.epoch, time.monotonic_ns()
                return

    def result(self) -> dict[str, Any]:
        return {
            "norm": self._norm,
            "microseconds": self._microseconds,
            "epoch": self._epoch,
            "done_ns": self._done_ns,
            "lost": self._lost,
            "frames": self._frames,
        }

    def close(self) -> None:
        self._job.detach()
        self._client.close()
