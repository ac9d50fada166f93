"""echo: the frames of an empty step, by the same Python client, to a server that does nothing: `bench_echo`."""

from __future__ import annotations

import os
import time
from typing import Any

import gradsync


class Contender:
    def __init__(self, rank: int, world_size: int, steps: int, frames: dict[str, Any]) -> None:
        self._client = gradsync.connect(os.environ["BENCH_ECHO"])
        self._channel = self._client._channel
        self._steps = steps
        self._frames = frames
        self._microseconds: list[float] = []

    def fill(self) -> None:
        """There is nothing to fill."""

    def step(self) -> None:
        self._microseconds = []
        notification = self._frames.get("notification")
        method, params = self._frames["method"], self._frames["params"]
        for _ in range(self._steps):
            begin = time.perf_counter_ns()
            if notification is not None:
                self._channel.notify(notification["method"], notification["params"])
            self._channel.call(method, params, timeout=60, idempotent=True)
            self._microseconds.append((time.perf_counter_ns() - begin) / 1e3)

    def result(self) -> dict[str, Any]:
        return {"microseconds": self._microseconds}

    def close(self) -> None:
        self._client.close()
