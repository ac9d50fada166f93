"""Drives a daemon as all ranks of a world at once, through the raw API but with rows that it did not make."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from reference.declare import Declared, declarations, to_api
from reference.rows import row_of
from reference.tables import Spoil, local_values
from reference.world import World

import gradsync

MOST_RANKS = 24
WAIT_S = 50.0


class Product:
    """A daemon, and one connection for each rank that a world may have."""

    def __init__(self, address: str) -> None:
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._clients = [gradsync.connect(address) for _ in range(MOST_RANKS)]
        self._threads = ThreadPoolExecutor(MOST_RANKS)

    def close(self) -> None:
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    def outcomes(self, world: World, body: Callable[[gradsync.Job], Any]) -> list[Any]:
        """What `body` returned or raised on each rank of a new job."""
        name = f"{self._name}-{next(self._numbers)}"

        def run(rank: int) -> Any:
            job = self._clients[rank].attach(name, rank, world.world_size, world.meshes)
            try:
                return body(job)
            except gradsync.GradsyncError as error:
                return error
            finally:
                with contextlib.suppress(gradsync.GradsyncError):
                    job.detach()

        futures = [self._threads.submit(run, rank) for rank in range(world.world_size)]
        return [future.result(WAIT_S) for future in futures]

    def each(self, world: World, body: Callable[[gradsync.Job], Any]) -> list[Any]:
        """`outcomes`, of which none may be an error."""
        outcomes = self.outcomes(world, body)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes


def declare(world: World, job: gradsync.Job, tensors: Sequence[Declared], timeout: float | None = None) -> Any:
    clip = {group: gradsync.Clip(max_norm=most) for group, most in world.max_norm.items()}
    return job.declare(
        [to_api(tensor) for tensor in tensors],
        data_path="stats",
        norm_type=world.norm_type,
        formula=world.mode,
        clip=clip,
        timeout=timeout,
    )


Parts = list[list[np.ndarray[Any, Any] | None]]


def parts_of(world: World, spoilt: dict[tuple[int, int], Spoil] | None = None) -> Parts:
    return [local_values(world, rank, spoilt) for rank in range(world.world_size)]


def fill(grads: gradsync.ReducedGrads, world: World, parts: Sequence[np.ndarray[Any, Any] | None]) -> None:
    """Straight into the shared table."""
    rows = [row_of(part, world.norm_type, grads.stamp, fingerprint=True).pack() for part in parts]
    table = grads.table_memoryview()
    table[: len(rows) * 64] = b"".join(rows)
    grads.wrote_all()


def steps(product: Product, world: World, parts: Parts) -> list[gradsync.StepReport]:
    """Two steps with equal gradients, one in a single call and one in halves. All ranks get equal reports."""
    tensors = declarations(world)

    def body(job: gradsync.Job) -> list[gradsync.StepReport]:
        grads = declare(world, job, tensors[job.rank])
        fill(grads, world, parts[job.rank])
        reports = [grads.finish()]
        fill(grads, world, parts[job.rank])
        return [*reports, grads.compute_norm(), grads.apply_clip()]

    by_rank = product.each(world, body)
    for reports in by_rank:
        assert [told(report) for report in reports] == [told(report) for report in by_rank[0]]
    return by_rank[0]


def told(report: gradsync.StepReport) -> str:
    """As text: there NaN is equal to NaN."""
    return repr(replace(report, timings=gradsync.StepTimings(0, 0, 0, 0, 0)))


def plan_check(binary: str, path: Path) -> dict[str, Any]:
    """The answer of `gradsyncd plan check`."""
    done = subprocess.run(
        [binary, "plan", "check", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["ok"] == (done.returncode == 0)
    return answer


@contextlib.contextmanager
def running() -> Iterator[Product]:
    """$GRADSYNCD, started for this file."""
    with gradsync.connect(spawn=True, timeout=60) as client:
        product = Product(client.address)
        try:
            yield product
        finally:
            product.close()
