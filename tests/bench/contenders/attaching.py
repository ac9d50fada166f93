"""attaching: a rank whose step is to connect and attach, as a trainer does that was started again; rank 0 stays."""

from __future__ import annotations

from typing import Any

import gradsync
from gradsync.errors import RankLost


class Contender:
    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._job: gradsync.Job | None = None
        self._grads: gradsync.Grads | None = None

    def fill(self) -> None:
        """There is nothing to fill."""

    def step(self) -> None:
        if self._job is None:
            self._job = gradsync.connect().attach(job="again", rank=self._rank, world_size=self._world_size)

    def result(self) -> dict[str, Any]:
        """A step with all ranks: a rank that stayed hears first that one was lost."""
        assert self._job is not None
        if self._grads is None:
            mean = {"dp": gradsync.Partial("mean") >> gradsync.Replicate()}
            self._grads = self._job.declare([gradsync.Tensor("t", (1000,), placements=mean)])
        while True:
            self._grads.input("t").numpy()[:] = 1 + self._rank
            try:
                report = self._grads.finish(ready="all")
                break
            except RankLost:
                pass
        return {"mean": float(self._grads.output("t").numpy()[0]), "epoch": report.epoch}

    def close(self) -> None:
        """It ends without a word."""
