"""torch_gloo: what a user of torch.distributed does by hand on CPUs."""

from __future__ import annotations

import os

import torch.distributed as dist

from contenders.flat_buckets import FlatBuckets


class Contender(FlatBuckets):
    def __init__(self, rank: int, world_size: int, elements: int, dtype_name: str) -> None:
        super().__init__(rank, world_size, elements, dtype_name)
        store = os.path.join(os.environ["BENCH_FOLDER"], "gloo")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)

    def step(self) -> None:
        works = [dist.all_reduce(bucket, async_op=True) for bucket in self.buckets]
        for bucket, work in zip(self.buckets, works, strict=True):
            work.wait()
            bucket.div_(self.world_size)
        self.clip()

    def close(self) -> None:
        dist.destroy_process_group()
