"""What the client of one rank says of another that stops, or that is killed and leaves a child, twenty times each."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S, TIMES, Daemon, get
from holdings import becomes

import gradsync
from gradsync.errors import RankLost, StepTimeout

PROCESSES = multiprocessing.get_context("forkserver")
SUM = {"dp": gradsync.Partial("sum") >> gradsync.Replicate()}


def told(results: Connection) -> Any:
    assert results.poll(DEADLINE_S), "the other rank says nothing"
    return results.recv()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def stopping(address: str, results: Connection) -> None:
    """Rank 1: again and again it takes part in a step, then stops in the middle of the next."""
    with gradsync.connect(address) as client:
        grads = client.attach(job="job", rank=1, world_size=2).declare([gradsync.Tensor("w", (3,), placements=SUM)])

        def step() -> float | str:
            grads.input("w").numpy()[:] = 1.0
            grads.ready("w")
            try:
                return grads.finish(timeout=DEADLINE_S).norm
            except gradsync.GradsyncError as error:
                return type(error).__name__

        for _ in range(TIMES):
            results.send(step())
            os.kill(os.getpid(), signal.SIGSTOP)
            results.send(step())
        results.send(step())


def test_a_stopped_rank_is_named_at_the_deadline_and_goes_on_later() -> None:
    results, theirs = PROCESSES.Pipe()
    with Daemon() as daemon, gradsync.connect(daemon.socket) as client:
        other = PROCESSES.Process(target=stopping, args=(daemon.socket, theirs))
        other.start()
        pid = other.pid
        assert pid is not None
        grads = client.attach(job="job", rank=0, world_size=2).declare([gradsync.Tensor("w", (3,), placements=SUM)])

        def step(timeout: float) -> gradsync.StepReport:
            grads.input("w").numpy()[:] = 1.0
            grads.ready("w")
            return grads.finish(timeout=timeout)

        for _ in range(TIMES):
            assert step(DEADLINE_S).norm == pytest.approx(12**0.5)
            assert told(results) == pytest.approx(12**0.5)
            becomes(lambda: int(is_stopped(pid)), 1)
            with pytest.raises(StepTimeout) as late:
                step(0.1)
            assert list(late.value.ranks) == [1]
            os.kill(pid, signal.SIGCONT)
            assert told(results) in ("StepTimeout", "StaleEpoch", "StaleAttempt", "StepMismatch")
        assert step(DEADLINE_S).norm == pytest.approx(12**0.5)
        assert told(results) == pytest.approx(12**0.5)
        other.join(DEADLINE_S)
        assert other.exitcode == 0


def attaching(address: str, results: Connection) -> None:
    client = gradsync.connect(address)
    client.attach(job="job", rank=1, world_size=2)
    results.send(True)
    signal.pause()


@pytest.mark.long
def test_a_rank_killed_before_it_declared_is_lost_by_name_when_no_successor_comes() -> None:
    results, theirs = PROCESSES.Pipe()
    with Daemon() as daemon, gradsync.connect(daemon.socket) as client:
        other = PROCESSES.Process(target=attaching, args=(daemon.socket, theirs))
        other.start()
        attached = client.attach(job="job", rank=0, world_size=2)
        assert told(results)
        begun = time.monotonic()
        other.kill()
        other.join(DEADLINE_S)
        with pytest.raises(RankLost) as lost:  # and not DeclareTimeout, which comes after a minute
            attached.declare([gradsync.Tensor("w", (3,), placements=SUM)], timeout=DEADLINE_S)
        assert time.monotonic() - begun > 9.5
        assert lost.value.rank == 1
        assert "no process took its place within 10.0 s" in str(lost.value)


def forking(address: str, job: str, results: Connection) -> None:
    """A rank that forks in the middle of a step, like a data loader; the child lives on when the rank is killed."""
    client = gradsync.connect(address)
    grads = client.attach(job=job, rank=1, world_size=2).declare([gradsync.Tensor("w", (3,), placements=SUM)])
    grads.ready("w")
    child = os.fork()
    if child == 0:
        signal.pause()
    results.send(child)
    signal.pause()


def test_a_killed_rank_whose_child_lives_on_is_lost_at_once() -> None:
    with Daemon() as daemon:
        for cycle in range(TIMES):
            results, theirs = PROCESSES.Pipe()
            job = f"job-{cycle}"
            with gradsync.connect(daemon.socket) as client:
                other = PROCESSES.Process(target=forking, args=(daemon.socket, job, theirs))
                other.start()
                attached = client.attach(job=job, rank=0, world_size=2)
                grads = attached.declare([gradsync.Tensor("w", (3,), placements=SUM)])
                child = told(results)
                other.kill()
                grads.ready("w")
                with pytest.raises(RankLost) as lost:
                    grads.finish(timeout=DEADLINE_S)
                assert lost.value.rank == 1
                os.kill(child, signal.SIGKILL)
                other.join(DEADLINE_S)
            status = json.loads(get(daemon.unix(), "/healthz")[1])
            assert status["state"] == "serving"
