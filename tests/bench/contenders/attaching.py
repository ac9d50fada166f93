"""attaching: one rank whose step is to connect and attach, as a trainer does that was started again."""

from __future__ import annotations

from typing import Any

import gradsync


class Contender:
    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._job: gradsync.Job | None = None

    def fill(self) -> None:
        """There is nothing to fill."""

    def step(self) -> None:
        self._job = gradsync.connect().attach(job="again", rank=self._rank, world_size=self._world_size)

    def result(self) -> dict[str, Any]:
        """And a step with the ranks that are there: all wait here for the last one to declare."""
        assert self._job is not None
        mean = {"dp": gradsync.Partial("mean") >> gradsync.Replicate()}
        grads = self._job.declare([gradsync.Tensor("t", (1000,), placements=mean)])
        grads.input("t").numpy()[:] = 1 + self._rank
        grads.finish(ready="all")
        return {"mean": float(grads.output("t").numpy()[0])}

    def close(self) -> None:
        """It ends without a word."""
