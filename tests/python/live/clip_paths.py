"""Steps of a job with clip groups on both data paths: one tensor for each group, of the same gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy

import gradsync
from gradsync import Clip, Partial, Replicate, Shard, StepReport, Tensor

SIZE = 6
HERE = SIZE // 2  # of what each of two ranks holds on data path stats


class Arena:
    """Two tensors that the sidecar reduces; the first alone is not finite where a test wants that."""

    def __init__(self, job: gradsync.Job, clip: Any, dtype: str = "float32") -> None:
        mean = {"dp": Partial("mean") >> Replicate()}
        tensors = [Tensor(name, (SIZE,), dtype=dtype, placements=mean, clip_group=name) for name in _groups(clip)]
        self.grads = job.declare(tensors, clip=clip)

    def step(self, *gradients: numpy.ndarray) -> StepReport:
        for tensor, gradient in zip(self.grads.tensors, gradients, strict=True):
            self.grads.input(tensor.name).numpy()[:] = gradient
            self.grads.ready(tensor.name)
        return self.grads.finish()

    def results(self) -> list[numpy.ndarray]:
        return [self.grads.output(tensor.name).numpy().copy() for tensor in self.grads.tensors]


class Stats:
    """The same, reduced already and cut in halves: the caller obeys the report."""

    def __init__(self, job: gradsync.Job, clip: Any, dtype: str = "float32") -> None:
        cut = {"dp": Shard(0)}
        self.part = slice(job.rank * HERE, (job.rank + 1) * HERE)
        tensors = [
            Tensor(name, (SIZE,), local_shape=(HERE,), dtype=dtype, placements=cut, clip_group=name)
            for name in _groups(clip)
        ]
        self.grads = job.declare(tensors, data_path="stats", clip=clip)

    def step(self, *gradients: numpy.ndarray) -> StepReport:
        for tensor, gradient in zip(self.grads.tensors, gradients, strict=True):
            self.grads.write(tensor.name, gradient[self.part].tolist())
        return self.grads.finish()


def _groups(clip: Any) -> list[str]:
    return ["all"] if isinstance(clip, Clip) else list(clip)


def plain(value: float) -> numpy.ndarray:
    return numpy.full(SIZE, value, dtype=numpy.float32)


def spoiled(rank: int) -> numpy.ndarray:
    gradient = plain(2.0)
    gradient[-1] = math.nan if rank == 1 else 2.0
    return gradient
