"""deepspeed_shm: DeepSpeed's shared-memory all-reduce, the fastest one for CPUs that a package offers."""

from __future__ import annotations

import contextlib
import os
import sys

import torch

from contenders.flat_buckets import FlatBuckets


def load_operator() -> object:
    """Compiles (once, ninja and g++) and loads `torch.ops.deepspeed.inference_all_reduce_`."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    with contextlib.redirect_stdout(sys.stderr):
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        return ShareMemCommBuilder().load(verbose=False)


class Contender(FlatBuckets):
    def __init__(self, rank: int, world_size: int, elements: int, dtype_name: str) -> None:
        super().__init__(rank, world_size, elements, dtype_name)
        # The operator names its memory after these two and trusts LOCAL_SIZE that all ranks are on this machine.
        os.environ.update(MASTER_ADDR="bench", MASTER_PORT=os.environ["BENCH_ID"], LOCAL_SIZE=str(world_size))
        self._rank = rank
        operator = load_operator()
        needed = 1 if dtype_name == "float32" else 2
        if operator.vector_kernel_level() < needed:
            raise RuntimeError(f"this CPU lacks the instructions that DeepSpeed's {dtype_name} kernel needs")
        operator.initialize(world_size, rank)

    def step(self) -> None:
        for bucket in self.buckets:
            torch.ops.deepspeed.inference_all_reduce_(bucket)
            bucket.div_(self.world_size)
        self.clip()

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_bench_{os.environ['BENCH_ID']}_{self._rank}")
