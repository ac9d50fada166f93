"""A real gradsyncd for tests of the client: ranks are threads, each with a connection of its own."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradsync
from gradsync import Partial, Replicate

JOIN_S = 50.0
RECONNECT = ("GRADSYNC_DEADLINES_RECONNECT_MS", "60000")  # a trainer that lives is slow and not lost
MEAN = {"dp": Partial("mean") >> Replicate()}
SUM = {"dp": Partial("sum") >> Replicate()}


def binary() -> str:
    """$GRADSYNCD, else what was built here; never one that happens to be installed."""
    built = Path(__file__).parents[2] / "build" / "cpu-release" / "bin" / "gradsyncd"
    chosen = os.environ.get("GRADSYNCD", str(built))
    if not os.access(chosen, os.X_OK):
        pytest.skip(f"{chosen} is not there: build it, or set GRADSYNCD")
    return chosen


def built_library(name: str) -> Path:
    """A library that is built beside the daemon, `lib/NAME` of its build folder."""
    library = Path(binary()).resolve().parents[1] / "lib" / name
    if not library.exists():
        pytest.skip(f"{library} is not there: build it")
    return library


class Ranks:
    """Runs `body(rank, job)` on N threads of one job."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.job = f"test-{secrets.token_hex(4)}"

    def outcomes(self, count: int, body: Callable[[int, gradsync.Job], Any]) -> list[Any]:
        """What each rank returned or raised."""
        results: list[Any] = [None] * count

        def run(rank: int) -> None:
            try:
                with gradsync.connect(self.address) as client:
                    results[rank] = body(rank, client.attach(job=self.job, rank=rank, world_size=count))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), "a rank hangs"
        return results

    def __call__(self, count: int, body: Callable[[int, gradsync.Job], Any]) -> list[Any]:
        results = self.outcomes(count, body)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


def all_ready(grads: gradsync.Grads) -> None:
    for tensor in grads.tensors:
        grads.ready(tensor.name)
