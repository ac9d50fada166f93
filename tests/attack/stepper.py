"""A process that steps as fast as it can until it is told to stop, and counts its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any, TypeVar

from daemon import DEADLINE_S
from walkers import PROCESSES

Self = TypeVar("Self", bound="Stepper")


class Stepper:
    """`steps(*arguments, done, stop)` runs in the process from the moment the context is entered: it writes the number
    of its steps to `done` and returns when `stop` is set."""

    def __init__(self, name: str, steps: Callable[..., None], *arguments: Any) -> None:
        self._name = name
        self._done: Synchronized[int] = PROCESSES.Value("q", 0, lock=False)
        self._stop: Event = PROCESSES.Event()
        self._process = PROCESSES.Process(target=steps, args=(*arguments, self._done, self._stop), daemon=True)

    def __enter__(self: Self) -> Self:
        self._process.start()
        self.steps_on(2)
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
            assert self._process.is_alive(), f"the {self._name} ended"
            assert time.monotonic() < end, (
                f"the {self._name} stands still: {target - self.steps} of {steps} steps are missing"
            )
            time.sleep(0.002)
