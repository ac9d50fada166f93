"""The states that a rank can be in, and a rank 1 in a process of its own that goes into each when told to, and goes on
from there when told to. Rank 0 is the test."""

from __future__ import annotations

import array
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from daemon import DEADLINE_S
from raw import RawRank

import gradsync
from gradsync.errors import ConnectionLost, RpcError

STATES = ("connected", "attached", "declaring", "between", "backward", "finish", "half", "paused")
BEFORE_DECLARED = ("connected", "attached", "declaring")
WAITS_IN = {"declaring": "gradients.declare", "finish": "step.finish"}  # as the daemon's status says it
OPTIONS = ("--engine-first-bucket-bytes", "4096", "--engine-bucket-bytes", "4096")  # a bucket for each tensor
NAMES = ["v", "w"]
NUMEL = 2000
PROCESSES = multiprocessing.get_context("fork")  # at that moment the test has one thread, and no client
SUM = {"dp": gradsync.Partial("sum") >> gradsync.Replicate()}


def brought(rank: int, step: int) -> float:
    """Every element of what that rank brings into that step."""
    return 10.0 * step + rank + 1


def reduced(step: int) -> float:
    return brought(0, step) + brought(1, step)


class Other:
    """Rank 1 as the test sees it: calls of `Member` by name, in its process."""

    def __init__(self, address: str) -> None:
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(address, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Other:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.close()
        self._pipe.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, what: str, *arguments: object) -> None:
        self._pipe.send((what, *arguments))

    def told(self) -> Any:
        assert self._pipe.poll(DEADLINE_S), "rank 1 says nothing"
        return self._pipe.recv()

    def enter(self, rank: RawRank, job: str, state: str) -> None:
        """Rank 1 goes into that state, and rank 0 does its part of it; then step 0 is what comes next where they have
        not declared, else step 1."""
        self._job = job
        self.ask("enter", job, state)
        if state not in BEFORE_DECLARED:
            rank.declared(rank.ask_declare(NAMES, NUMEL))
            rank.fill(brought(0, 0))
            assert "norm" in rank.finished(rank.ask_finish(0))
            rank.fill(brought(0, 1))
        if state == "half":
            fence = {"epoch": rank.epoch, "attempt": rank.attempt, "step": 1}
            rank.call("norm.compute", **fence, ready="all")
        assert self.told() is None
        deadline = time.monotonic() + DEADLINE_S
        while state in WAITS_IN and (waiting := self.seat(rank)["waiting_in"]) != WAITS_IN[state]:
            assert time.monotonic() < deadline, f"rank 1 waits in {waiting!r}, not in {WAITS_IN[state]}"

    def seat(self, rank: RawRank) -> Any:
        """What the daemon tells rank 0 of rank 1."""
        return next(job for job in rank.call("status.get")["jobs"] if job["job"] == self._job)["ranks"][1]

    def kill(self) -> None:
        self._process.kill()
        self._process.join(DEADLINE_S)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def _serve(address: str, pipe: Connection) -> None:
    member = Member(address)
    while True:
        what, *arguments = pipe.recv()
        pipe.send(getattr(member, what)(*arguments))


class Member:
    """Rank 1 in its process. What waits for rank 0 in a state does so in a thread, so that the others can be told."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._left: int | None = None

    def enter(self, job: str, state: str) -> None:
        self._state, self._job_name, self._step = state, job, 0
        self._client = gradsync.connect(self._address)
        if state == "connected":
            return
        self._attach()
        if state == "attached":
            return
        if state == "declaring":
            self._begin(self._declare)
            return
        self._declare()
        self.step()
        if state == "backward":
            self._bring(["v"])
        elif state == "finish":
            self._bring()
            self._begin(self._finish)
        elif state == "half":
            self._bring()
            self._grads.compute_norm(timeout=DEADLINE_S)
        elif state == "paused":
            self._pause = self._job.pause()
            self._pause.__enter__()

    def go_on(self) -> float | str:
        """Ends the step of the state: what `step` returns."""
        state, self._state = self._state, "between"
        if state == "connected":
            self._attach()
        if state in ("connected", "attached"):
            self._declare()
        if state == "declaring":
            self._end()
        if state == "backward":
            self._bring(["w"])
            return self._result(self._finish)
        if state == "finish":
            return self._result(self._end)
        if state == "half":
            return self._result(lambda: self._grads.apply_clip(timeout=DEADLINE_S))
        result = self.step()
        if state == "paused":
            self._pause.__exit__(None, None, None)
        return result

    def step(self) -> float | str:
        """One step from its start: what all elements of all tensors are, or the kind of the error."""
        self._bring()
        return self._result(self._finish)

    def fork(self, lingers: bool) -> bool:
        """Whether a child finds its client lost; one that lingers is there until `release`."""
        told, tells = os.pipe()
        released, self._release = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(self._release)
            try:
                self._client.status()
            except ConnectionLost as error:
                os.write(tells, b"+" if str(os.getppid()) in str(error) else b"?")
            else:
                os.write(tells, b"-")
            if lingers:
                os.read(released, 1)
            os._exit(0)
        os.close(tells)
        os.close(released)
        lost = os.read(told, 1) == b"+"
        os.close(told)
        self._left = child
        if not lingers:
            self.release()
        return lost

    def release(self) -> None:
        """The child ends, without a word."""
        assert self._left is not None
        os.close(self._release)
        os.waitpid(self._left, 0)
        self._left = None

    def leave(self) -> None:
        self._client.close()

    def _attach(self) -> None:
        self._job = self._client.attach(self._job_name, rank=1, world_size=2, meshes={"m": {"dp": 2}})

    def _declare(self) -> None:
        self._grads = self._job.declare(
            [gradsync.Tensor(name, (NUMEL,), placements=SUM) for name in NAMES], timeout=DEADLINE_S
        )

    def _bring(self, names: Sequence[str] = NAMES) -> None:
        for name in names:
            self._grads.input(name).memoryview().cast("f")[:] = array.array("f", [brought(1, self._step)]) * NUMEL
            self._grads.ready(name)

    def _finish(self) -> None:
        self._grads.finish(timeout=DEADLINE_S)

    def _result(self, ending: Callable[[], object]) -> float | str:
        try:
            ending()
        except RpcError as error:
            return error.kind
        self._step += 1
        values = {value for name in NAMES for value in self._grads.output(name).memoryview().cast("f")}
        return values.pop() if len(values) == 1 else f"mixed: {values}"

    def _begin(self, waiting: Callable[[], None]) -> None:
        self._failed: list[BaseException] = []

        def run() -> None:
            try:
                waiting()
            except BaseException as error:
                self._failed.append(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def _end(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        if self._failed:
            raise self._failed[0]
