"""empty_step: steps of one element by the raw Python API, one after the other: what is left is what a step costs."""

from __future__ import annotations

import json
import time
from typing import Any

import gradsync


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
        self._frames = self._one_step_recorded()

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

    def _one_step_recorded(self) -> dict[str, Any]:
        """The messages of one step, for the bare server to exchange as well."""
        job: Any = self._job
        notify, step_call = job.notify, job.step_call
        frames: dict[str, Any] = {}

        def recorded_notify(method: str, params: dict[str, Any]) -> None:
            frames.update(notification={"method": method, "params": params})
            notify(method, params)

        def recorded_call(method: str, params: dict[str, Any], *arguments: Any, **named: Any) -> Any:
            result = step_call(method, params, *arguments, **named)
            frames.update(method=method, params=params)
            frames.update(result=json.dumps(result, separators=(",", ":")))
            return result

        job.notify, job.step_call = recorded_notify, recorded_call
        self._grads.ready("x")
        self._grads.finish()
        job.notify, job.step_call = notify, step_call
        return frames

    def close(self) -> None:
        self._job.detach()
        self._client.close()
