"""Stopping a daemon in the middle of a step, and what operators see of that step."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from daemon import DEADLINE_S, Daemon, get, run_command

import gradsync
from gradsync import Clip, Partial, Replicate, Tensor
from gradsync.errors import GradsyncError


class HalfStep:
    """Two ranks of one job; rank 0 waits in its finish for rank 1."""

    def __init__(self, daemon: Daemon, stack: ExitStack) -> None:
        self.daemon = daemon
        clients = [stack.enter_context(gradsync.connect(daemon.socket)) for _ in range(2)]
        jobs = [client.attach(job="drained", rank=rank, world_size=2) for rank, client in enumerate(clients)]
        self.clients = clients
        self.grads: list[Any] = [None, None]
        self._on_both(lambda rank: self._declare(rank, jobs[rank]))
        self.outcome: Any = None
        self._waiting = threading.Thread(target=self._finish)
        self._waiting.start()
        self._wait_until_rank_0_waits()

    def _declare(self, rank: int, job: gradsync.Job) -> None:
        tensor = Tensor("w", shape=(8,), dtype="float32", placements={"dp": Partial("sum") >> Replicate()})
        self.grads[rank] = job.declare([tensor], clip=Clip(max_norm=None))
        self.grads[rank].input("w").numpy()[:] = rank + 1

    def _on_both(self, work: Any) -> None:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def _finish(self) -> None:
        try:
            self.grads[0].ready("w")
            self.outcome = self.grads[0].finish()
        except GradsyncError as error:
            self.outcome = error

    def _wait_until_rank_0_waits(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while self.rank_status(0)["waiting_in"] != "step.finish":
            assert time.monotonic() < end, "rank 0 never waited"

    def rank_status(self, rank: int) -> dict[str, Any]:
        status = json.loads(get(self.daemon.unix(), "/status")[1])
        found: dict[str, Any] = status["jobs"][0]["ranks"][rank]
        return found

    def join(self) -> Any:
        self._waiting.join(DEADLINE_S)
        assert not self._waiting.is_alive(), "rank 0 hangs"
        return self.outcome

    def terminate_until_not_ready(self) -> None:
        self.daemon.process.send_signal(signal.SIGTERM)
        status, body = get(self.daemon.health(), "/readyz")
        end = time.monotonic() + DEADLINE_S
        while status == 200:
            assert time.monotonic() < end
            status, body = get(self.daemon.health(), "/readyz")
        assert "[-]not-draining failed" in body


@pytest.fixture(autouse=True)
def _no_other_daemon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradsync._transport._connection._RECONNECT_S", 0.5)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_step_in_flight_finishes_and_then_the_daemon_ends(stack: ExitStack) -> None:
    daemon = stack.enter_context(Daemon())
    half = HalfStep(daemon, stack)
    half.terminate_until_not_ready()
    assert get(daemon.health(), "/livez")[0] == 200
    assert daemon.process.poll() is None
    half.grads[1].ready("w")
    report = half.grads[1].finish()
    assert half.join().norm == report.norm == pytest.approx((8 * 9.0) ** 0.5)
    assert daemon.process.wait(DEADLINE_S) == 0


def test_nobody_attaches_to_a_daemon_that_stops(stack: ExitStack) -> None:
    daemon = stack.enter_context(Daemon())
    newcomer = stack.enter_context(gradsync.connect(daemon.socket))
    half = HalfStep(daemon, stack)
    half.terminate_until_not_ready()
    with pytest.raises(GradsyncError, match="shut"):
        newcomer.attach(job="late", rank=0, world_size=1)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(DEADLINE_S) == 0
    assert isinstance(half.join(), GradsyncError)


def test_a_second_signal_stops_at_once(stack: ExitStack) -> None:
    daemon = stack.enter_context(Daemon())
    half = HalfStep(daemon, stack)
    half.terminate_until_not_ready()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(DEADLINE_S) == 0
    assert daemon.wait_for_log("stopping at once")
    assert isinstance(half.join(), GradsyncError)


def test_a_step_that_does_not_finish_holds_the_daemon_up_for_drain_ms_only(stack: ExitStack) -> None:
    daemon = stack.enter_context(Daemon("--deadlines-drain-ms", "100"))
    half = HalfStep(daemon, stack)
    assert daemon.terminate() == 0
    assert "drain_ms=100" in daemon.wait_for_log("drain: ")["msg"]
    assert isinstance(half.join(), GradsyncError)


def test_operators_see_who_waits_for_whom(stack: ExitStack) -> None:
    daemon = stack.enter_context(Daemon())
    half = HalfStep(daemon, stack)
    text = run_command("status", "--address", daemon.socket).stdout
    assert "job drained" in text
    assert "in step.finish" in text
    page = get(daemon.unix(), "/")[1]
    assert "drained" in page
    assert "step.finish for" in page
    assert json.loads(get(daemon.health(), "/healthz")[1])["jobs"] == 1
    assert "drained" not in get(daemon.health(), "/")[1]
    half.grads[1].ready("w")
    half.grads[1].finish()
    half.join()
    assert json.loads(get(daemon.health(), "/healthz")[1])["last_commit_age_s"] >= 0
    assert half.rank_status(1)["waiting_in"] == ""
