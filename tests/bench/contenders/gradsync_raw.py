"""gradsync_raw: the raw Python API against a daemon of this benchmark alone."""

from __future__ import annotations

import torch

import gradsync
from gradients import MAX_NORM, fill, pattern


class Contender:
    def __init__(self, rank: int, world_size: int, sizes: list[int], dtype: torch.dtype) -> None:
        self._client = gradsync.connect()
        self._job = self._client.attach(
            job="bench", rank=rank, world_size=world_size, meshes={"ranks": {"dp": world_size}}
        )
        self._names = [f"tensor_{index}" for index in range(len(sizes))]
        mean = gradsync.Partial("mean") >> gradsync.Replicate()
        dtype_name = str(dtype).removeprefix("torch.")
        self._grads = self._job.declare(
            [
                gradsync.Tensor(name, shape=(size,), dtype=dtype_name, placements={"dp": mean})
                for name, size in zip(self._names, sizes, strict=True)
            ],
            clip=gradsync.Clip(max_norm=MAX_NORM),
        )
        self.views = [self._grads.input(name).torch() for name in self._names]
        self._source = pattern(rank, dtype)

    def fill(self) -> None:
        fill(self.views, self._source)

    def step(self) -> float:
        # Backward makes the last declared gradients ready first.
        for name in reversed(self._names):
            self._grads.ready(name)
        report = self._grads.finish()
        if not report.clipped:
            raise RuntimeError(f"norm {report.norm} was not clipped to {MAX_NORM}")
        return report.norm

    def close(self) -> None:
        self._job.detach()
        self._client.close()
