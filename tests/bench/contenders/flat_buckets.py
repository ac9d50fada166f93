"""What both torch peers share: gradients as views of flat 25 MiB buckets, as DDP keeps them, and torch's own clip."""

from __future__ import annotations

from typing import Any

import torch

from gradients import MAX_NORM, dtype_of, fill, pattern, result, tensor_sizes

BUCKET_BYTES = 25 << 20


class FlatBuckets:
    def __init__(self, rank: int, world_size: int, elements: int, dtype_name: str) -> None:
        dtype = dtype_of(dtype_name)
        self.world_size = world_size
        self.norm = 0.0
        self.buckets: list[torch.Tensor] = []
        self.parameters: list[torch.nn.Parameter] = []
        self._source = pattern(rank, dtype)
        limit = BUCKET_BYTES // dtype.itemsize
        pending: list[int] = []
        for size in tensor_sizes(elements):
            if pending and sum(pending) + size > limit:
                self._add_bucket(pending, dtype)
                pending = []
            pending.append(size)
        self._add_bucket(pending, dtype)
        self.views = [parameter.grad for parameter in self.parameters]

    def _add_bucket(self, sizes: list[int], dtype: torch.dtype) -> None:
        bucket = torch.zeros(sum(sizes), dtype=dtype)
        self.buckets.append(bucket)
        for view in bucket.split(sizes):
            # The value of the parameter plays no part: one element stands for all of them.
            parameter = torch.nn.Parameter(torch.zeros(1, dtype=dtype).expand(view.numel()))
            parameter.grad = view
            self.parameters.append(parameter)

    def fill(self) -> None:
        fill(self.views, self._source)

    def clip(self) -> None:
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, MAX_NORM))

    def result(self) -> dict[str, Any]:
        return result(self.norm, self.views)

    def close(self) -> None:
        """Nothing is held outside the process."""
