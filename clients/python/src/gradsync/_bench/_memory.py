"""A step of large gradients, which memory limits, and a loop over as many bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy

from gradsync._client import connect
from gradsync._clip import Clip
from gradsync._job import Job
from gradsync._placements import Partial, Replicate
from gradsync._step._grads import Grads
from gradsync._tensor import Tensor

from ._figures import Figure, in_turns

__all__ = ["measure_memory"]

_RANKS = 2
_TENSORS = 16
_BLOCK = 1 << 15  # elements, so that what a pass has read is in the cache when the next one reads it
_ALLOWED = 2.0  # 1.04 to 1.13 on two cores with nothing else to do
_ADVICE = (
    "other programs use the memory or the cores, the daemon has fewer threads than cores (engine.threads, a CPU quota) "
    "or the ranks' memory is on another NUMA node: numactl --hardware shows it"
)


class _Floor:
    """What a step with a clip does to memory: two ranks' gradients are read and one is written; then the other way."""

    def __init__(self, elements: int, threads: int) -> None:
        self._a, self._b = (numpy.full(elements, value, numpy.float32) for value in (0.5, 0.25))
        self._pool = ThreadPoolExecutor(threads)
        share = -(-elements // threads)
        self._shares = [slice(first, min(first + share, elements)) for first in range(0, elements, share)]

    def step(self) -> list[float]:
        began = time.perf_counter()
        for one_pass in (self._add, self._scale):
            list(self._pool.map(one_pass, self._shares))
        return [time.perf_counter() - began]

    def _add(self, share: slice) -> None:
        numpy.add(self._a[share], self._b[share], out=self._a[share])

    def _scale(self, share: slice) -> None:
        for first in range(share.start, share.stop, _BLOCK):
            block = slice(first, min(first + _BLOCK, share.stop))
            numpy.multiply(self._a[block], numpy.float32(0.5), out=self._a[block])
            numpy.copyto(self._b[block], self._a[block])

    def close(self) -> None:
        self._pool.shutdown()


class _Steps:
    """The same gradients, summed, measured and clipped by the daemon."""

    def __init__(self, ranks: list[Grads], pool: ThreadPoolExecutor) -> None:
        self._ranks, self._pool = ranks, pool

    def step(self) -> list[float]:
        for grads in self._ranks:
            for tensor in grads.tensors:
                grads.input(tensor.name).numpy()[:] = 0.5
        began = time.perf_counter()
        list(self._pool.map(self._finish, self._ranks))
        return [time.perf_counter() - began]

    @staticmethod
    def _finish(grads: Grads) -> None:
        for tensor in grads.tensors:
            grads.ready(tensor.name)
        grads.finish()


@contextmanager
def _attached(address: str) -> Iterator[list[Job]]:
    """Two ranks of one job, each with a connection of its own."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(_RANKS)]
        name = f"gradsync-bench-{os.getpid()}"
        yield [client.attach(name, rank, _RANKS, restart_count=0) for rank, client in enumerate(clients)]


def measure_memory(address: str, megabytes: int, rounds: int) -> Figure:
    """A step of two ranks with so many MiB of float32 each."""
    elements = (megabytes << 20) // 4 // _TENSORS
    sums: Any = {"dp": Partial("mean") >> Replicate()}
    tensors = [Tensor(f"t{index}", (elements,), placements=sums) for index in range(_TENSORS)]
    floor = _Floor(elements * _TENSORS, len(os.sched_getaffinity(0)))

    def declare(job: Job) -> Grads:
        return job.declare(tensors, clip=Clip(max_norm=1.0))

    with _attached(address) as jobs, ThreadPoolExecutor(_RANKS) as pool:
        steps = _Steps([*pool.map(declare, jobs)], pool)
        steps.step()  # pages of memory come with the first touch
        floor.step()
        taken_s, floor_s = in_turns([steps.step, floor.step], rounds)
    floor.close()
    moved = 6 * (megabytes << 20)
    return Figure(
        f"a step of 2 ranks with {megabytes} MiB each ({moved / taken_s / 1e9:.1f} GB/s)",
        f"a loop over the same bytes ({moved / floor_s / 1e9:.1f} GB/s)",
        taken_s,
        floor_s,
        _ALLOWED,
        _ADVICE,
    )
