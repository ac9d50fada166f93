"""What tests of failures over nodes share: steps in which ranks wait, what they hear when, and what daemons keep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from daemon import DEADLINE_S
from node_jobs import NodeRank, Nodes, exact_norm, job_over
from rank_process import RankProcess
from ranks_in_threads import on_all, whole

import gradsync
from gradsync.errors import GradsyncError

PROCESS_S = 3.0  # a dead process is known within 1 s; these machines are slow
NODE_S = 9.0  # a silent node within 6 s
MEMORY_KB = 4096  # what allocators may keep
AnyRank = NodeRank | RankProcess
_POOL = ThreadPoolExecutor(32)  # of the tests' own threads: each of them waits for those of ranks


def soon(ranks: Sequence[Any], body: Callable[[Any], Any]) -> Future[list[Any]]:
    """`on_all`, meanwhile."""
    return _POOL.submit(on_all, ranks, body)


def beside(cases: Sequence[Any], body: Callable[[Any], None]) -> None:
    """Whole tests beside each other, because most of their time passes with waiting."""
    with ThreadPoolExecutor(len(cases)) as pool:
        for each in [pool.submit(body, case) for case in cases]:
            each.result()


@dataclass(frozen=True)
class Heard:
    """What came of one rank's call, and when."""

    rank: int
    node: int
    result: Any
    at: float


class Asking:
    """Ranks that ask for a step, each on a thread of its own."""

    def __init__(self, ranks: Sequence[AnyRank], step: int, *, again: bool = False, **given: Any) -> None:
        """`again`: as a trainer does that computes the step again when it was lost."""
        self._ranks = ranks
        self._so_far: list[Heard] = []

        def asked(rank: AnyRank) -> Heard:
            try:
                result = rank.step_until_done(step) if again else rank.step(step, **given)
            except GradsyncError as error:
                result = error
            heard = Heard(rank.rank, rank.node, result, time.monotonic())
            self._so_far.append(heard)
            return heard

        self._heard = soon(ranks, asked)

    def wait_until_asked(self) -> None:
        """All of them wait in their daemons."""
        for address in {rank.address for rank in self._ranks}:
            here = {rank.rank for rank in self._ranks if rank.address == address}
            with gradsync.connect(address, timeout=DEADLINE_S) as client:
                wait_for(
                    lambda here=here, client=client: here <= asked_in(client, self._ranks[0].name),
                    f"ranks {here} do not wait in step.finish",
                )

    def heard_by(self, ranks: Sequence[AnyRank]) -> list[Heard]:
        """By these, while others may still wait."""
        wanted = {rank.rank for rank in ranks}
        wait_for(lambda: wanted <= {each.rank for each in self._so_far}, f"not all of {wanted}: {self._so_far}")
        return [each for each in self._so_far if each.rank in wanted]

    def ended(self) -> bool:
        """Some rank has heard something."""
        return bool(self._so_far)

    def heard(self) -> list[Heard]:
        heard: list[Heard] = whole(self._heard.result(2 * DEADLINE_S))
        return heard


def asked_in(client: gradsync.Client, job: str) -> set[int]:
    """The ranks that wait in a step of that job."""
    jobs = [each for each in client.status()["jobs"] if each["job"] == job]
    return {rank["rank"] for each in jobs for rank in each["ranks"] if rank["waiting_in"] == "step.finish"}


def wait_for(condition: Callable[[], Any], otherwise: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.005)


def check_errors(
    heard: Sequence[Heard],
    kind: type[GradsyncError],
    *,
    node: str | None,
    ranks: Sequence[int],
    since: float,
    within_s: float,
    own_node: int | None = None,
) -> None:
    """Each heard that error in time. `own_node`: ranks of that node may hear it without a node, for it is theirs."""
    assert heard
    for each in heard:
        assert type(each.result) is kind, each
        if each.node == own_node:
            assert each.result.node in (None, node), each
        else:
            assert each.result.node == node, each
        assert list(each.result.ranks) == list(ranks), each
        assert each.at - since < within_s, (each, each.at - since)


def check_step(ranks: Sequence[AnyRank], step: int, reports: Sequence[Any]) -> None:
    """Every rank has the norm of the whole model, and the same numbers."""
    exact = np.float32(exact_norm(step, ranks[0].world_size))
    for report in reports:
        assert not isinstance(report, Exception), report
        assert report.step == step
        assert abs(np.float32(report.norm) - exact) <= np.spacing(exact), (report.norm, exact)
    assert len({(report.norm, report.coefficient) for report in reports}) == 1


def step_again(ranks: Sequence[AnyRank], step: int) -> None:
    """All of them compute a step that was lost, or the next one."""
    check_step(ranks, step, whole(on_all(ranks, lambda rank: rank.step_until_done(step))))


@dataclass(frozen=True)
class Usage:
    descriptors: int
    threads: int
    memory_kb: int

    @staticmethod
    def of(pid: int) -> Usage:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        memory = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return Usage(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), memory)


class Baseline:
    """What each daemon uses once jobs have come and gone: no more than that is left after the failures."""

    def __init__(
        self,
        nodes: Nodes,
        per_node: int,
        kind: type[NodeRank] = NodeRank,
        take: Callable[[Sequence[Any], int], None] = step_again,
    ) -> None:
        """`kind` and `take`: what the jobs before have for ranks, and how these take a step."""
        self._nodes = nodes
        for _ in range(5):  # the allocators and the pools have what they need
            with job_over(nodes, per_node, "before", kind=kind) as ranks:
                whole(on_all(ranks, lambda rank: rank.declare()))
                take(ranks, 0)
        wait_for(lambda: not self._jobs(), "the jobs before are not gone")
        self._before = [Usage.of(daemon.process.pid) for daemon in nodes.daemons]

    def _jobs(self) -> list[Any]:
        found = []
        for daemon in self._nodes.daemons:
            with gradsync.connect(daemon.socket, timeout=DEADLINE_S) as client:
                found += client.status()["jobs"]
        return found

    def check(self) -> None:
        wait_for(lambda: not self._jobs(), f"jobs are left: {self._jobs()}")
        for daemon, before in zip(self._nodes.daemons, self._before, strict=True):
            pid = daemon.process.pid

            def is_back(pid: int = pid, before: Usage = before) -> bool:
                now = Usage.of(pid)
                return (
                    now.descriptors <= before.descriptors
                    and now.threads <= before.threads
                    and now.memory_kb < before.memory_kb + MEMORY_KB
                )

            wait_for(is_back, f"{Usage.of(pid)} is left, and it was {before}")
