"""A job that trains while its ranks and daemons are killed and stopped. A rank is a process; a dead one is replaced."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from daemon import DEADLINE_S
from node_jobs import NodeRank, Route, exact_norm
from rank_process import Numbers, RankProcess
from ranks_in_threads import on_all, whole
from sync_rank import SyncRank, sync_norm

from gradsync.errors import GradsyncError

STEP_S = 15.0  # of a rank that waits for others
ANSWERS_S = 3.0  # until the other ranks of a step that was done have their answers
DEAD = (EOFError, OSError)  # what a call hears whose process is gone


@dataclass(frozen=True)
class Kind:
    """What a job does, and the norm that it should have."""

    name: str
    rank: type[NodeRank]
    norm: Callable[[int, int], float]


KINDS = (Kind("stats", NodeRank, exact_norm), Kind("sync", SyncRank, sync_norm))


@dataclass
class Heard:
    """What ranks heard over all rounds."""

    steps: int = 0
    replaced: int = 0
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Seat:
    """One rank. `process` is replaced by the thread that takes its steps; faults come from another one."""

    def __init__(self, job: SoakJob, rank: int) -> None:
        self._job, self.rank = job, rank
        self._declared = False
        self.process = self._started()

    def _started(self) -> RankProcess:
        job = self._job
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return RankProcess(job.route, job.name, self.rank, job.per_node, job.world_size, job.kind.rank)
            except (GradsyncError, *DEAD):  # its daemon is gone just now
                if time.monotonic() > end:
                    raise

    def take(self, step: int, done: threading.Event) -> Numbers | None:
        """The numbers of a step, which is computed again where it was lost. None: it was done by the process before."""
        end = time.monotonic() + 2 * DEADLINE_S
        replaced = False
        while True:
            assert time.monotonic() < end, f"rank {self.rank} of '{self._job.name}': step {step} is not done"
            try:
                # Before it declares, which waits for all: a rank that has its numbers, and is killed now, is replaced
                # with its next step.
                if replaced and done.wait(ANSWERS_S):
                    return None
                if not self._declared:
                    self.process.declare(timeout=STEP_S)
                    self._declared = True
                numbers = self.process.step(step, timeout=STEP_S)
            except GradsyncError as error:
                self._job.count(type(error).__name__)
            except DEAD:
                self.process.close()
                self.process = self._started()
                self._job.count_replaced()
                self._declared, replaced = False, True
            else:
                done.set()
                return numbers


class SoakJob:
    def __init__(self, kind: Kind, name: str, route: Route, per_node: int, heard: Heard) -> None:
        self.kind, self.name, self.route, self.per_node = kind, name, route, per_node
        self.world_size = per_node * len(route.addresses)
        self._heard = heard
        self.seats: list[Seat] = whole(on_all(range(self.world_size), lambda rank: Seat(self, rank)))

    def count(self, error: str) -> None:
        with self._heard.lock:
            self._heard.errors[error] += 1

    def count_replaced(self) -> None:
        with self._heard.lock:
            self._heard.replaced += 1

    def step(self, step: int) -> None:
        """All ranks take it; whoever has numbers has the right ones."""
        done = threading.Event()
        taken = [each for each in whole(on_all(self.seats, lambda seat: seat.take(step, done))) if each is not None]
        exact = np.float32(self.kind.norm(step, self.world_size))
        assert taken, f"'{self.name}': no rank has the numbers of step {step}"
        assert len({(each.norm, each.coefficient) for each in taken}) == 1, taken
        assert all(each.step == step for each in taken), taken
        assert abs(np.float32(taken[0].norm) - exact) <= np.spacing(exact), (self.name, taken[0].norm, exact)
        with self._heard.lock:
            self._heard.steps += 1

    def close(self) -> None:
        on_all(self.seats, lambda seat: seat.process.close())
