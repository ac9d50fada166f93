"""Two ranks of another process, which step as fast as they can while a test attacks their daemon.

`ATTACK_SECONDS` is how long an attack that can go on goes on; by default it ends as soon as it has been seen to fail.
`python tests/attack/measure.py` prints what the attacks cost the victim."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from types import TracebackType

from daemon import DEADLINE_S
from raw import RawRank, declare_all
from walkers import PROCESSES

SECONDS = float(os.environ.get("ATTACK_SECONDS", "0"))
RANKS, NUMEL = 2, 1024


def _stepping(address: str, done: object, times: object, stop: object) -> None:
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(RawRank(address, "victim", rank, RANKS)) for rank in range(RANKS)]
        declare_all(ranks, ["w"], NUMEL)
        begin = time.perf_counter()
        for step in range(10**9):
            for rank in ranks:
                rank.fill(1.0)
            asked = [rank.ask_finish(step) for rank in ranks]
            reports = [rank.finished(number) for rank, number in zip(ranks, asked, strict=True)]
            assert all("norm" in report for report in reports), reports
            assert all(rank.values[0] == RANKS for rank in ranks)
            now = time.perf_counter()
            times[step % len(times)] = now - begin  # type: ignore[arg-type,index]
            begin = now
            done.value = step + 1  # type: ignore[attr-defined]
            if stop.is_set():  # type: ignore[attr-defined]
                return


class Victim:
    """Steps from the moment the context is entered; a step with a wrong sum ends its process."""

    def __init__(self, address: str) -> None:
        self._done = PROCESSES.Value("q", 0, lock=False)
        self._times = PROCESSES.Array("d", 1 << 16, lock=False)
        self._stop = PROCESSES.Event()
        self._process = PROCESSES.Process(
            target=_stepping, args=(address, self._done, self._times, self._stop), daemon=True
        )

    def __enter__(self) -> Victim:
        self._process.start()
        self.steps_on(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._process.join(DEADLINE_S)
        if self._process.is_alive():
            self._process.kill()
        if kind is None:
            assert self._process.exitcode == 0

    @property
    def steps(self) -> int:
        return int(self._done.value)

    def steps_on(self, steps: int = 50) -> None:
        """Waits for that many more steps; fails where they do not come."""
        target = self.steps + steps
        end = time.monotonic() + DEADLINE_S
        while self.steps < target:
            assert self._process.is_alive(), "the victim ended"
            assert time.monotonic() < end, (
                f"the victim stands still: {target - self.steps} of {steps} steps are missing"
            )
            time.sleep(0.002)

    def step_times(self, since: int) -> list[float]:
        """Seconds of each step since that one, in order of size; the last 65,536 at most."""
        last = self.steps
        first = max(since, last - len(self._times) + 1)
        return sorted(self._times[step % len(self._times)] for step in range(first, last))


def lasts(begin: float) -> bool:
    """Whether an attack that began then goes on."""
    return time.monotonic() - begin < SECONDS


def goes_on_for(least: int) -> Iterator[int]:
    """Counts to that number, and further while an attack goes on."""
    begin, number = time.monotonic(), 0
    while number < least or lasts(begin):
        yield number
        number += 1
