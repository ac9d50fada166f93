"""empty_step: steps of one element by the raw Python API, one after the other: what is left is what a step costs."""

from __future__ import annotations

import time
from typing import Any

import gradsync
from contenders.recording import recorded


class Contender:
    def __init__(self, rank: int, world_size: int, steps: int) -> None:
        self._client = gradsync.connect()
        self._job = self._client.attach(job="empty", rank=rank, world_size=world_size)
        self._grads = self._job.declare(
            [gradsync.Tensor("x", shape=(1,), placements={"dp": gradsync.Partial("mean") >> gradsync.Replicate()})],
            clip=gradsync.Clip(max_norm=1.0),
        )
        self._value = self._grads.input("x").numpy()
        self._steps = steps
        self._norm = 0.0
        self._microseconds: list[float] = []
        self._frames = recorded(self._job, self._one_step)

    def fill(self) -> None:
        self._value[0] = 0.5

    def step(self) -> None:
        self._microseconds = []
        for _ in range(self._steps):
            begin = time.perf_counter_ns()
            self._grads.ready("x")
            self._norm = self._grads.finish().norm
            self._microseconds.append((time.perf_counter_ns() - begin) / 1e3)

    def result(self) -> dict[str, Any]:
        return {"norm": self._norm, "microseconds": self._microseconds, "frames": self._frames}

    def _one_step(self) -> None:
        self._grads.ready("x")
        self._grads.finish()

    def close(self) -> None:
        self._job.detach()
        self._client.close()
