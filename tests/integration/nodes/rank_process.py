"""A rank of a job over nodes in a process of its own, which can be killed or stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from daemon import DEADLINE_S
from node_jobs import NodeRank, Route

from gradsync import StepReport

PROCESSES = multiprocessing.get_context("forkserver")


class Numbers(NamedTuple):
    """What a rank says of its report."""

    step: int
    norm: float
    coefficient: float


class RankProcess:
    """`NodeRank` in its process. Its calls wait, as those of a rank in a thread do, and raise what it raises."""

    def __init__(
        self, route: Route, job: str, rank: int, per_node: int, world_size: int, kind: Callable[..., Any] = NodeRank
    ) -> None:
        PROCESSES.set_forkserver_preload(["gradsync", "numpy"])
        self.name, self.rank, self.world_size = job, rank, world_size
        self.node = rank // per_node
        self.address = route.address(self.node)
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(
            target=_serve, args=(theirs, kind, route, job, rank, per_node, world_size), daemon=True
        )
        self._process.start()
        theirs.close()
        assert self._told() is None

    def close(self) -> None:
        self.kill()
        self._process.close()
        self._pipe.close()

    def declare(self, timeout: float | None = None) -> None:
        self._call("declare", timeout=timeout)

    def step(self, step: int, timeout: float | None = None) -> Numbers:
        numbers: Numbers = self._call("step", step, timeout=timeout)
        return numbers

    def step_until_done(self, step: int) -> Numbers:
        numbers: Numbers = self._call("step_until_done", step)
        return numbers

    def ready_early(self, step: int) -> None:
        """Where the kind of rank has that; `ask` is the rest of the step."""
        self._call("ready_early", step)

    def ask(self, step: int) -> Numbers:
        numbers: Numbers = self._call("ask", step)
        return numbers

    def kill(self) -> None:
        self._process.kill()
        self._process.join(DEADLINE_S)

    def stop(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _call(self, what: str, *arguments: object, **named: object) -> Any:
        self._pipe.send((what, arguments, named))
        return self._told()

    def _told(self) -> Any:
        assert self._pipe.poll(DEADLINE_S), f"rank {self.rank} says nothing"
        result = self._pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result


def _serve(
    pipe: Connection, kind: Callable[..., Any], route: Route, job: str, rank: int, per_node: int, world_size: int
) -> None:
    result: Any = None
    try:
        me = kind(route, job, rank, per_node, world_size)
    except Exception as error:
        pipe.send(error)
        return
    while True:
        if isinstance(result, StepReport):
            result = Numbers(result.step, result.norm, result.coefficient)
        pipe.send(result)
        what, arguments, named = pipe.recv()
        try:
            result = getattr(me, what)(*arguments, **named)
        except Exception as error:
            result = error
