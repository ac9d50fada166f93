"""A job on an emulated GPU that something happens to, and another on another GPU that goes on.

A worker that is to be met in the middle of a command is stopped before the command is sent, and looked at through its
socket."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from daemon import Daemon
from gpu_ranks import GPUS, GpuRank, all_do, mappings_in, until, workers_of

MAP_MS, PLAN_MS, ABORT_MS, STEP_S = 2_500, 2_500, 2_000, 2.5
DEADLINES = ("--gpu-map-ms", str(MAP_MS), "--gpu-plan-ms", str(PLAN_MS), "--gpu-abort-ms", str(ABORT_MS))
LATEST_S = 20.0  # for an error, with a machine that is busy
LARGE = 2_000_000  # elements: a pass over them takes longer than a signal
SOCKET, PIDFD_GETFD = 3, 438
# The answer to a declaration that came when the worker was dead already, or when the other rank had given up.
TOO_LATE = {
    "UnknownBuffer": r"buffer \d+ was lost with the worker of .*; register it again",
    "InvalidDeclaration": r"the arena of rank \d, buffer \d+, was released; .* gradients.declare again",
}


@contextlib.contextmanager
def pair(address: str, job: str, gpu: str = GPUS[0]) -> Iterator[list[GpuRank]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(GpuRank(address, job, rank, 2, gpu)) for rank in range(2)]


def worker_for(daemon: Daemon, gpu: str) -> int:
    """The pid of the worker of this GPU; 0: it has none."""
    for worker in workers_of(daemon.process.pid):
        with contextlib.suppress(FileNotFoundError):
            if gpu in Path(f"/proc/{worker}/cmdline").read_text():
                return worker
    return 0


def mapped_by(daemon: Daemon) -> int:
    """What all its workers have mapped; one that just ended has nothing."""
    found = 0
    for worker in workers_of(daemon.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += mappings_in(worker)
    return found


def socket_of(worker: int) -> socket.socket:
    """The worker's end of its lane."""
    pidfd = os.pidfd_open(worker)
    try:
        found = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, SOCKET, 0)
        if found < 0:
            pytest.skip(f"this process may not look into a worker: {os.strerror(ctypes.get_errno())}")
        return socket.socket(fileno=found)
    finally:
        os.close(pidfd)


def has_command(worker: int) -> bool:
    """Whether a command waits in its socket; none is taken out."""
    with socket_of(worker) as lane:
        try:
            return len(lane.recv(8, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 0
        except BlockingIOError:
            return False


def stop(worker: int) -> None:
    os.kill(worker, signal.SIGSTOP)
    until(lambda: "\nState:\tT" in Path(f"/proc/{worker}/status").read_text(), "it stands still")


class Scene:
    """A job on one GPU whose worker is hurt, and another on another GPU that goes on."""

    def __init__(self, daemon: Daemon, hurt: list[GpuRank], others: list[GpuRank]) -> None:
        self.daemon, self.hurt, self.others = daemon, hurt, others
        self.has_declared_since = False  # since the worker was hurt
        all_do(others, "declare", device="cuda")
        self.right = all_do(others, "step", seed=0)
        self.healthy = worker_for(daemon, GPUS[1])

    def worker(self) -> int:
        return worker_for(self.daemon, GPUS[0])

    def declared(self) -> None:
        """Each rank declares again as long as it is told of what became of the worker before."""
        self.told("declare", device="cuda")
        self.answered_until_declared()
        self.has_declared_since = False

    def answered_until_declared(self) -> list[dict[str, Any]]:
        """The first answer of each rank."""
        latest = time.monotonic() + LATEST_S

        def declare(rank: GpuRank) -> dict[str, Any]:
            first = answer = rank.answer()
            while "digest" not in answer:
                assert answer["kind"] in (*TOO_LATE, "StepFailed", "ImportRefused"), answer
                assert time.monotonic() < latest, answer
                answer = rank.order("declare", device="cuda")
            return first

        self.has_declared_since = True
        with ThreadPoolExecutor(len(self.hurt)) as pool:
            return list(pool.map(declare, self.hurt))

    def others_go_on(self) -> None:
        assert all_do(self.others, "step", seed=0) == self.right
        assert worker_for(self.daemon, GPUS[1]) == self.healthy

    def told(self, do: str, **arguments: object) -> None:
        for rank in self.hurt:
            rank.tell(do, **arguments)

    def answered(self) -> list[dict[str, Any]]:
        began = time.monotonic()
        self.others_go_on()
        answers = [rank.answer() for rank in self.hurt]
        assert time.monotonic() - began < LATEST_S
        return answers

    def stopped_before_a_command(self, do: str, **arguments: object) -> int:
        """The worker, which stands still with a command in its socket."""
        worker = self.worker()
        stop(worker)
        self.told(do, **arguments)
        until(lambda: has_command(worker), "the command is sent")
        return worker

    def is_well_again(self, worker: int) -> None:
        """Nothing is left of the worker, and another does its work."""
        until(lambda: worker not in workers_of(self.daemon.process.pid), "the worker has ended")
        if not self.has_declared_since:
            until(lambda: mapped_by(self.daemon) == 2, "only the others' memory is mapped")
        self.declared()
        assert all_do(self.hurt, "step", seed=0) == self.right
        assert self.worker() not in (worker, 0)
        assert mapped_by(self.daemon) == 4
        self.others_go_on()
