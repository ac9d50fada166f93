"""travelling_step: steps whose gradients travel between nodes, by the raw Python API. `until_again` takes steps until a
daemon was lost and is back. With `aborts` an attempt fails whose gradients travel, and its step is taken again.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gradsync
from gradsync.errors import ConnectionLost, NodeLost, StaleAttempt, StaleEpoch, StepMismatch

TENSORS = 4
ELEMENTS = 1 << 18  # of each
LOST = (ConnectionLost, NodeLost, StaleAttempt, StaleEpoch)


def norm(world_size: int) -> float:
    """Rank r has r + 1 everywhere, and the mean is exact."""
    return (world_size + 1) / 2 * math.sqrt(TENSORS * ELEMENTS)


class Contender:
    def __init__(self, rank: int, world_size: int, until_again: bool = False, aborts: bool = False) -> None:
        self._client = gradsync.connect()
        self._job = self._client.attach(job="travelling", rank=rank, world_size=world_size)
        placements = {"dp": gradsync.Partial("mean") >> gradsync.Replicate()}
        self._names = [f"tensor_{index}" for index in range(TENSORS)]
        self._grads = self._job.declare(
            [gradsync.Tensor(name, shape=(ELEMENTS,), placements=placements) for name in self._names]
        )
        self._inputs = [self._grads.input(name).numpy() for name in self._names]
        self._value = float(rank + 1)
        self._other_number = rank == world_size - 1
        self._until_again, self._aborts = until_again, aborts
        self._next_step = 0
        self._norm, self._epoch, self._done_ns, self._lost_ns = 0.0, 0, 0, 0

    def fill(self) -> None:
        """Every attempt fills its inputs itself."""

    def step(self) -> None:
        if self._aborts:
            self._abort()
        while True:
            report = self._one_step()
            if report is not None and (not self._until_again or report.epoch > self._epoch):
                break
        self._norm, self._epoch, self._done_ns = report.norm, report.epoch, time.monotonic_ns()

    def _all_ready(self) -> None:
        for name, memory in zip(self._names, self._inputs, strict=True):
            memory[:] = self._value
            self._grads.ready(name)

    def _one_step(self) -> gradsync.StepReport | None:
        """None: it was lost."""
        try:
            self._all_ready()
            report = self._grads.finish(step=self._next_step)
        except LOST:
            return None
        self._next_step += 1
        return report

    def _abort(self) -> None:
        try:
            self._all_ready()
            self._grads.finish(step=self._next_step + (1 if self._other_number else 0))
        except StepMismatch:
            self._lost_ns = time.monotonic_ns()
        else:
            raise RuntimeError("a step of two numbers was done")

    def result(self) -> dict[str, Any]:
        return {"norm": self._norm, "epoch": self._epoch, "done_ns": self._done_ns, "lost_ns": self._lost_ns}

    def close(self) -> None:
        self._job.detach()
        self._client.close()
