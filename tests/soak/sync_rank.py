"""A rank whose gradients travel between nodes: small whole numbers, so that every sum is exact and can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from node_jobs import NodeRank

from gradsync import Partial, Replicate, Shard, Tensor

SUM = {"dp": Partial("sum") >> Replicate()}
SCATTER = {"dp": Partial("sum") >> Shard(0)}
WHOLE = 5_003  # elements; no multiple of anything
CUT = 240  # of equal parts for 2, 3, 4, 5, 6 and 8 ranks


def gradient(name: str, elements: int, step: int, rank: int) -> np.ndarray[Any, Any]:
    seed = [step, rank, sum(name.encode())]
    return np.random.default_rng(seed).integers(-8, 9, elements).astype(np.float32)


def total(name: str, elements: int, step: int, world_size: int) -> np.ndarray[Any, Any]:
    return np.sum([gradient(name, elements, step, rank) for rank in range(world_size)], axis=0, dtype=np.float32)


def sync_norm(step: int, world_size: int) -> float:
    values = [total(name, elements, step, world_size) for name, elements in (("whole", WHOLE), ("cut", CUT))]
    return float(np.sqrt(np.sum(np.concatenate(values).astype(np.float64) ** 2)))


class SyncRank(NodeRank):
    """It compares what it gets with the sum of what all ranks brought, element by element."""

    def declare(self, **options: Any) -> None:
        tensors = [Tensor("whole", (WHOLE,), placements=SUM), Tensor("cut", (CUT,), placements=SCATTER)]
        self.grads = self.job.declare(tensors, **options)

    def step(self, step: int, **given: Any) -> Any:
        self.grads.input("whole").numpy()[:] = gradient("whole", WHOLE, step, self.rank)
        self.grads.input("cut").numpy()[:] = gradient("cut", CUT, step, self.rank)
        report = self.grads.finish(step=step, ready="all", **given)
        size = CUT // self.world_size
        part = slice(self.rank * size, (self.rank + 1) * size)
        expected = {"whole": total("whole", WHOLE, step, self.world_size)}
        expected["cut"] = total("cut", CUT, step, self.world_size)[part]
        for name, values in expected.items():
            differs = np.flatnonzero(self.grads.output(name).numpy() != values)
            assert differs.size == 0, f"rank {self.rank}, step {step}, '{name}' differs at {differs[:5].tolist()}"
        return report
