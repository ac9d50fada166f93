"""bare_server: the frames of a step, by the same Python client, to `bench_echo`, which makes the bare loops of a step
over the ranks' memory once both have asked, and does nothing else.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import gradsync
from gradients import dtype_of, fill, pattern, result, tensor_sizes


class Contender:
    def __init__(self, rank: int, world_size: int, elements: int, dtype_name: str, frames: dict[str, Any]) -> None:
        memory = torch.from_file(os.environ[f"BENCH_RANK_{rank}"], shared=True, size=elements + 1)
        self._norm = memory[elements:]
        self._views = list(memory[:elements].split(tensor_sizes(elements)))
        self._source = pattern(rank, dtype_of(dtype_name))
        self._client = gradsync.connect(os.environ["BENCH_ECHO"])
        self._channel = self._client._channel
        self._frames = frames

    def fill(self) -> None:
        fill(self._views, self._source)

    def step(self) -> None:
        method, params = self._frames["method"], self._frames["params"]
        self._channel.call(method, params, timeout=60, idempotent=True)

    def result(self) -> dict[str, Any]:
        return result(float(self._norm), self._views)

    def close(self) -> None:
        self._client.close()
