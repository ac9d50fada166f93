"""Two ranks in processes of their own that step until they are told to stop, and check the bits of every step."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from daemon import DEADLINE_S, Daemon
from holdings import becomes, descriptors, resident_kb, threads
from raw import RawRank

PROCESSES = multiprocessing.get_context("forkserver")
NAMES, NUMEL = ["first", "second", "third"], 1000
RANKS = 2


def value(rank: int, step: int) -> float:
    return float((step * 7 + rank * 3) % 11 + 1)


def walk(address: str, job: str, number: int, pipe: Connection) -> None:
    """Sends "steps", then, when told to stop, when each step began, its seconds, and how many results were wrong."""
    took: list[tuple[float, float]] = []
    wrong = 0
    with RawRank(address, job, number, RANKS) as rank:
        rank.declared(rank.ask_declare(NAMES, NUMEL))
        for step in range(10**9):
            # Rank 0 decides when both end: a step that one takes and the other does not would never be done.
            stop = number == 0 and step > 0 and pipe.poll()
            rank.fill(float("inf") if stop else value(number, step))
            begin = time.perf_counter()
            report = rank.finished(rank.ask_finish(step))
            took.append((begin, time.perf_counter() - begin))
            if report["found_inf"]:
                break
            summed = sum(value(other, step) for other in range(RANKS))
            norm = math.sqrt(len(NAMES) * NUMEL * summed * summed)
            right = all(
                rank.values[offset // 4 + place] == summed
                for offset in rank.declaration["offsets"]
                for place in (0, NUMEL // 2, NUMEL - 1)
            )
            wrong += not (right and abs(report["norm"] - norm) <= norm * 2**-23)
            if step == 0:
                pipe.send("steps")
    pipe.send((took, wrong))


class Walkers:
    """In the context they step; `stop` ends them and says how it went."""

    def __init__(self, address: str, job: str = "walkers") -> None:
        pipes = [PROCESSES.Pipe() for _ in range(RANKS)]
        self._pipes = [ours for ours, _ in pipes]
        self._ranks = [
            PROCESSES.Process(target=walk, args=(address, job, number, theirs), daemon=True)
            for number, (_, theirs) in enumerate(pipes)
        ]

    def __enter__(self) -> Walkers:
        for rank in self._ranks:
            rank.start()
        for pipe in self._pipes:
            assert self._told(pipe) == "steps"
        return self

    def stop(self) -> tuple[list[tuple[float, float]], int]:
        """Begin and seconds of rank 0's steps, and the number of wrong results of both."""
        self._pipes[0].send("stop")
        told = [self._told(pipe) for pipe in self._pipes]
        return told[0][0][:-1], sum(wrong for _, wrong in told)

    def _told(self, pipe: Connection) -> Any:
        assert pipe.poll(DEADLINE_S), "a rank says nothing"
        return pipe.recv()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            if kind is not None:
                rank.kill()
            rank.join(DEADLINE_S)


@contextlib.contextmanager
def undisturbed(daemon: Daemon, *, memory_kb: int = 16 * 1024) -> Iterator[None]:
    """Two ranks step meanwhile, all right; descriptors and threads are afterwards as before, and memory nearly."""
    pid = daemon.process.pid
    fds = descriptors(pid)
    with Walkers(daemon.socket, "before") as walkers:
        assert walkers.stop()[1] == 0
    becomes(lambda: descriptors(pid), fds)
    count, memory = threads(pid), resident_kb(pid)
    with Walkers(daemon.socket) as walkers:
        yield
        took, wrong = walkers.stop()
    assert took
    assert wrong == 0
    becomes(lambda: descriptors(pid), fds)
    becomes(lambda: threads(pid), count)
    assert resident_kb(pid) - memory < memory_kb
