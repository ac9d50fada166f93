"""gradsync_raw: the raw Python API against a daemon of this benchmark alone."""

from __future__ import annotations

from typing import Any

import gradsync
from gradients import MAX_NORM, dtype_of, fill, pattern, result, tensor_sizes


class Contender:
    def __init__(self, rank: int, world_size: int, elements: int, dtype_name: str) -> None:
        sizes = tensor_sizes(elements)
        self._norm = 0.0
        self._client = gradsync.connect()
        self._job = self._client.attach(
            job="bench", rank=rank, world_size=world_size, meshes={"ranks": {"dp": world_size}}
        )
        self._names = [f"tensor_{index}" for index in range(len(sizes))]
        mean = gradsync.Partial("mean") >> gradsync.Replicate()
        self._grads = self._job.declare(
            [
                gradsync.Tensor(name, shape=(size,), dtype=dtype_name, placements={"dp": mean})
                for name, size in zip(self._names, sizes, strict=True)
            ],
            clip=gradsync.Clip(max_norm=MAX_NORM),
        )
        self.views = [self._grads.input(name).torch() for name in self._names]
        self._source = pattern(rank, dtype_of(dtype_name))

    def fill(self) -> None:
        fill(self.views, self._source)

    def step(self) -> None:
        # Backward makes the last declared gradients ready first.
        for name in reversed(self._names):
            self._grads.ready(name)
        self._norm = self._grads.finish().norm

    def result(self) -> dict[str, Any]:
        return result(self._norm, self.views)

    def close(self) -> None:
        self._job.detach()
        self._client.close()
