"""Ranks as processes on a real daemon: killed in each state, eight of them, two jobs at once, torchrun restarts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from daemon import BINARY, DEADLINE_S, Daemon, clean_environment

import gradsync
from gradsync.errors import RankLost

PROCESSES = multiprocessing.get_context("spawn")
SUM = {"dp": gradsync.Partial("sum") >> gradsync.Replicate()}


def declare(client, job, rank, world):
    attached = client.attach(job=job, rank=rank, world_size=world)
    return lambda: attached.declare([gradsync.Tensor("w", (1000,), placements=SUM)])


def member(address, job, rank, world, steps, victim_is_dead, results):
    """Takes part in `steps` steps; a step that a lost rank failed is computed again."""
    lost = []
    with gradsync.connect(address) as client:
        grads = declare(client, job, rank, world)()
        done = 0
        while done < steps:
            grads.input("w").numpy()[:] = (rank + 1) * (done + 1)
            grads.ready("w")
            # Rank 1 keeps the step open until the victim is dead, so that it cannot be completed before.
            assert rank != 1 or victim_is_dead.wait(DEADLINE_S)
            try:
                grads.finish(timeout=DEADLINE_S)
                done += 1
            except RankLost as error:
                lost.append(error.rank)
        results.put((job, rank, lost, sorted(set(grads.output("w").numpy().tolist()))))


def heir(address, job, rank, world, is_there, victim_is_dead, results):
    """Started before the victim dies, because a daemon waits only ten seconds for a process that takes its place."""
    is_there.set()
    assert victim_is_dead.wait(DEADLINE_S)
    member(address, job, rank, world, 1, victim_is_dead, results)


def victim(address, job, rank, world, state, waits):
    client = gradsync.connect(address)
    go_on = declare(client, job, rank, world)
    if state != "attached":
        grads = go_on()
        if state != "declared":
            grads.ready("w")
        if state == "finish":
            threading.Thread(target=grads.finish, daemon=True).start()
            while client.status()["jobs"][0]["ranks"][rank]["waiting_in"] != "step.finish":
                pass
    waits.set()
    signal.pause()


def start(target, *arguments):
    process = PROCESSES.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def event(is_set=False):
    made = PROCESSES.Event()
    if is_set:
        made.set()
    return made


def collect(results, count):
    return sorted(results.get(timeout=DEADLINE_S) for _ in range(count))


@pytest.mark.parametrize("state", ["attached", "declared", "ready", "finish"])
def test_a_rank_killed_in_any_state_is_named_and_replaced(state):
    results, dead, waits, heir_is_there = PROCESSES.Queue(), event(), event(), event()
    with Daemon() as daemon:
        start(member, daemon.socket, "job", 0, 3, 1, dead, results)
        start(member, daemon.socket, "job", 1, 3, 1, dead, results)
        doomed = start(victim, daemon.socket, "job", 2, 3, state, waits)
        start(heir, daemon.socket, "job", 2, 3, heir_is_there, dead, results)
        assert waits.wait(DEADLINE_S)
        assert heir_is_there.wait(DEADLINE_S)
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.join(DEADLINE_S)
        dead.set()
        # A rank that had not declared leaves nothing to lose: those in gradients.declare just go on waiting.
        lost = [] if state == "attached" else [2]
        assert collect(results, 3) == [("job", 0, lost, [6.0]), ("job", 1, lost, [6.0]), ("job", 2, [], [6.0])]


def test_eight_ranks():
    results, nobody_dies = PROCESSES.Queue(), event(is_set=True)
    with Daemon() as daemon:
        for rank in range(8):
            start(member, daemon.socket, "job", rank, 8, 3, nobody_dies, results)
        assert collect(results, 8) == [("job", rank, [], [108.0]) for rank in range(8)]


def test_two_jobs_at_once():
    results, nobody_dies = PROCESSES.Queue(), event(is_set=True)
    with Daemon() as daemon:
        for job, world in (("a", 2), ("b", 3)):
            for rank in range(world):
                start(member, daemon.socket, job, rank, world, 20, nobody_dies, results)
        expected = [("a", rank, [], [60.0]) for rank in range(2)] + [("b", rank, [], [120.0]) for rank in range(3)]
        assert collect(results, 5) == expected


RESTARTED = """
import os, gradsync
with gradsync.connect() as client:
    grads = client.attach().declare([gradsync.Tensor("w", (4,), placements={
        "dp": gradsync.Partial("sum") >> gradsync.Replicate()})])
    grads.input("w").numpy()[:] = 1
    grads.ready("w")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        os._exit(3)
    grads.finish()
    os.write(1, b"sum %d\\n" % grads.output("w").numpy()[0])  # one write: both ranks share the pipe
"""


@pytest.mark.timeout(DEADLINE_S * 2)
def test_torchrun_restarts_a_job_whose_rank_failed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESTARTED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1", "--nproc-per-node=2"]
    done = subprocess.run(
        [BINARY, "run", "--", *launcher, str(script)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["sum 2", "sum 2"]
