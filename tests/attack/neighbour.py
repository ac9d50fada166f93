"""One rank of another process with one large tensor, which steps as fast as it can beside the victim."""

from __future__ import annotations

from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

from raw import REPLICATED, RawRank
from stepper import Stepper


def _stepping(address: str, numel: int, norm_type: float | str, done: Synchronized[int], stop: Event) -> None:
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
            done.value = step + 1
            if stop.is_set():
                return


class Neighbour(Stepper):
    def __init__(self, address: str, numel: int, norm_type: float | str = 2) -> None:
        super().__init__("neighbour", _stepping, address, numel, norm_type)
