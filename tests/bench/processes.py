"""The long-lived processes of a benchmark: asked one line at a time, each answer with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
START_DEADLINE_S = 240.0  # The first start compiles DeepSpeed's operator.
ANSWER_DEADLINE_S = 240.0  # The first clip of 2,000 DTensors takes torch a minute.
STEP_LEAD_NS = 15_000_000


class Unavailable(Exception):
    """A contender that cannot run here, and why."""


class Process:
    """A child that answers each line on its standard input with one line."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(self, line: str) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Its answer, which never comes, tells why.
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()

    def answer(self, deadline_s: float = ANSWER_DEADLINE_S) -> str:
        assert self._child.stdout is not None
        readable, _, _ = select.select([self._child.stdout], [], [], deadline_s)
        line = self._child.stdout.readline().decode().strip() if readable else ""
        if not line:
            what = "ended" if readable else f"gave no answer in {deadline_s:.0f} s"
            raise Unavailable(f"{self.name} {what}: {self.last_words()}")
        return line

    def last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        self.ask("quit")
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._errors.close()

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self._child.kill()
        self._child.wait()


class Ranks:
    """All ranks of one contender."""

    def __init__(
        self,
        name: str,
        world_size: int,
        arguments: dict[str, Any],
        environment: dict[str, str],
        by_rank: Sequence[dict[str, str]] = (),
    ) -> None:
        """`by_rank`: what each rank has in its environment besides."""
        command = [sys.executable, str(HERE / "rank.py"), name]
        self.results: list[dict[str, Any]] = []
        self.cpu_seconds = 0.0  #: that all ranks took for the last step
        self._processes = [
            Process(
                f"{name} rank {rank}",
                [*command, str(rank), str(world_size), json.dumps(arguments)],
                {**environment, **(by_rank[rank] if by_rank else {})},
            )
            for rank in range(world_size)
        ]
        try:
            for process in self._processes:
                process.answer(START_DEADLINE_S)
        except Unavailable:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def step(self) -> float:
        """Fills, then steps all ranks from one moment on; the latency of the slowest rank in seconds."""
        self.fill()
        return self.step_filled()

    def fill(self) -> None:
        self._ask("fill")

    def step_filled(self) -> float:
        answers = self._ask(f"step {time.monotonic_ns() + STEP_LEAD_NS}")
        self.results = [answer["result"] for answer in answers]
        self.cpu_seconds = sum(float(answer["cpu_seconds"]) for answer in answers)
        return max(float(answer["seconds"]) for answer in answers)

    def _ask(self, line: str) -> list[dict[str, Any]]:
        for process in self._processes:
            process.ask(line)
        return [json.loads(process.answer()) for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.ask("quit")
        for process in self._processes:
            process.close()


class Floor:
    """The bare loop."""

    def __init__(self, binary: Path, arguments: list[Any]) -> None:
        if not binary.exists():
            raise Unavailable(f"{binary} is missing: build it with `make build`")
        self._process = Process("floor", [str(binary), *map(str, arguments)], {})
        self._process.answer(START_DEADLINE_S)

    def step(self) -> float:
        self._process.ask("fill")
        self._process.answer()
        self._process.ask("step")
        return float(self._process.answer())

    def close(self) -> None:
        self._process.close()


class Stepping(Protocol):
    """What can take a step; returns its seconds."""

    def step(self) -> float: ...


def alternate(
    name: str,
    contenders: Mapping[str, Stepping],
    rounds: int,
    warm_up: int,
    check: Callable[[int], None],
    steps: int = 1,
) -> dict[str, list[float]]:
    """Milliseconds per step of each contender by round; each goes first in every other one.

    `check` gets the number of every round, below 0 in the warm-up; a call of `step` makes `steps` steps.
    """
    samples: dict[str, list[float]] = {contender: [] for contender in contenders}
    for number in range(-warm_up, rounds):
        turns = list(contenders.items())[:: 1 if number % 2 else -1]
        times = {contender: ranks.step() * 1e3 / steps for contender, ranks in turns}
        check(number)
        if number >= 0:
            for contender, milliseconds in times.items():
                samples[contender].append(round(milliseconds, 4))
        label = "warm-up" if number < 0 else f"round {number + 1}/{rounds}"
        figures = ", ".join(f"{contender} {times[contender]:.1f}" for contender in contenders)
        print(f"{name}: {label}: {figures} ms", flush=True)
    return samples


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Daemon:
    """A gradsyncd that runs."""

    address: str
    pid: int


@contextlib.contextmanager
def listening(name: str, command: list[str], path: Path, environment: dict[str, str]) -> Iterator[int]:
    """A server from the moment it listens at `path`; yields its pid."""
    log_path = path.with_name(f"{name}.log")
    with open(log_path, "wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
        )
    try:
        deadline = time.monotonic() + 10
        while not path.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                said = log_path.read_text(errors="replace").strip().splitlines()
                raise Unavailable(f"{name} did not open {path}: {said[-1] if said else 'it said nothing'}")
            time.sleep(0.01)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextlib.contextmanager
def started_daemon(binary: Path, folder: Path, environment: dict[str, str] | None = None) -> Iterator[Daemon]:
    """A gradsyncd of this benchmark alone, with default settings."""
    if not binary.exists():
        raise Unavailable(f"{binary} is missing: build it with `make build`")
    path = folder / "gradsync.sock"
    command = [str(binary), "serve", "--server-socket", str(path), "--server-health", "127.0.0.1:0"]
    with listening("gradsyncd", command, path, environment or {}) as pid:
        yield Daemon(str(path), pid)


@contextlib.contextmanager
def private_daemon(binary: Path, folder: Path) -> Iterator[str]:
    """The same; yields its address alone."""
    with started_daemon(binary, folder) as daemon:
        yield daemon.address
