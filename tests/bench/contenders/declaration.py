"""declaration: a job of its own for each turn, whose `declare` is the step."""

from __future__ import annotations

from typing import Any

import gradsync


class Contender:
    def __init__(self, rank: int, world_size: int, tensors: int) -> None:
        self._rank, self._world_size, self._jobs = rank, world_size, 0
        self._client = gradsync.connect()
        self._job: gradsync.Job | None = None
        self._grads: gradsync.Grads | None = None
        placements = {"dp": gradsync.Partial("mean") >> gradsync.Replicate()}
        self._tensors = [
            gradsync.Tensor(f"layers.{index // 10}.block.{index % 10}.weight", shape=(10, 10), placements=placements)
            for index in range(tensors)
        ]

    def fill(self) -> None:
        if self._job is not None:
            self._job.detach()
        self._jobs += 1
        self._job = self._client.attach(job=f"declare-{self._jobs}", rank=self._rank, world_size=self._world_size)

    def step(self) -> None:
        assert self._job is not None
        self._grads = self._job.declare(self._tensors, clip=gradsync.Clip(max_norm=1.0))

    def result(self) -> dict[str, Any]:
        """And a step with it, so that what was declared is known to work."""
        assert self._grads is not None
        for tensor in self._tensors:
            self._grads.ready(tensor.name)
        return {"counted_elements": self._grads.finish().counted_elements}

    def close(self) -> None:
        self._client.close()
