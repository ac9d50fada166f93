"""One rank of another process with one large tensor, which steps as fast as it can beside the victim."""

from __future__ import annotations

import time
from types import TracebackType

from daemon import DEADLINE_S
from raw import REPLICATED, RawRank
from walkers import PROCESSES


def _stepping(address: str, numel: int, norm_type: object, done: object, stop: object) -> None:
    # Two ranks, as the sum is what takes the lane's time; they differ by nothing that a test looks at.
    with RawRank(address, "neighbour", 0, 2) as first, RawRank(address, "neighbour", 1, 2) as second:
        ranks = [first, second]
        tensor = {"name": "w", "shape": [numel], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
        asked = []
        for rank in ranks:
            rank.allocate(-(-numel * 4 // 64) * 64)
            asked.append(
                rank.ask("gradients.declare", buffer=rank.buffer, tensors=[tensor], options={"norm_type": norm_type})
            )
        for rank, number in zip(ranks, asked, strict=True):
            rank.declared(number)
        for step in range(10**9):
            numbers = [rank.ask_finish(step) for rank in ranks]
            for rank, number in zip(ranks, numbers, strict=True):
                assert "norm" in rank.finished(number)
            done.value = step + 1  # type: ignore[attr-defined]
            if stop.is_set():  # type: ignore[attr-defined]
                return


class Neighbour:
    def __init__(self, address: str, numel: int, norm_type: float | str = 2) -> None:
        self._done = PROCESSES.Value("q", 0, lock=False)
        self._stop = PROCESSES.Event()
        self._process = PROCESSES.Process(
            target=_stepping, args=(address, numel, norm_type, self._done, self._stop), daemon=True
        )

    def __enter__(self) -> Neighbour:
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

    def steps_on(self, steps: int) -> None:
        target, end = self.steps + steps, time.monotonic() + DEADLINE_S
        while self.steps < target:
            assert self._process.is_alive(), "the neighbour ended"
            assert time.monotonic() < end, "the neighbour stands still"
            time.sleep(0.002)
