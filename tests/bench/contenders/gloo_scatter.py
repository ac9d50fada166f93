"""gloo_scatter: what a user of torch.distributed does by hand on CPUs where each rank keeps a part of the mean."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from contenders.flat_buckets import BUCKET_BYTES
from gradients import dtype_of, fill, pattern, result, squares, tensor_sizes


class Bucket:
    """Some of the gradients, and this rank's parts of them in one flat tensor."""

    def __init__(self, gradients: list[torch.Tensor], shards: int, way: str) -> None:
        self.gradients = gradients
        self._columns = [gradient.view(shards, -1) for gradient in gradients]
        sizes = [columns.shape[1] for columns in self._columns]
        self.output = torch.zeros(sum(sizes), dtype=gradients[0].dtype)
        self.parts = list(self.output.split(sizes))
        # A collective by shards wants them together; an exchange per tensor needs no copy into a flat tensor.
        self._flat = torch.zeros((shards, sum(sizes)) if way == "reduce_scatter" else 0, dtype=self.output.dtype)
        self._received = [torch.zeros_like(c) for c in self._columns] if way == "all_to_all" else []
        self._works: list[Any] = []

    def reduce_scatter(self, group: dist.ProcessGroup) -> None:
        torch.cat(self._columns, 1, out=self._flat)
        self._works = [dist.reduce_scatter(self.output, list(self._flat.unbind()), group=group, async_op=True)]

    def all_to_all(self, group: dist.ProcessGroup) -> None:
        self._works = [
            dist.all_to_all_single(received, columns, group=group, async_op=True)
            for received, columns in zip(self._received, self._columns, strict=True)
        ]

    def wait(self) -> None:
        """Until the parts are summed."""
        for index, work in enumerate(self._works):
            work.wait()
            if self._received:
                torch.sum(self._received[index], 0, out=self.parts[index])


class Contender:
    def __init__(
        self,
        rank: int,
        world_size: int,
        elements: int,
        dtype_name: str,
        way: str,
        shards: int,
        max_norm: float | None,
    ) -> None:
        """Ranks are replicas × shards, shards fastest; `way` is how a sum over the shards' axis is scattered."""
        store = os.path.join(os.environ["BENCH_FOLDER"], way)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        dtype, replicas = dtype_of(dtype_name), world_size // shards
        self._world_size = world_size
        self._replicas = replicas
        self._way = way
        self._max_norm = max_norm
        self._norm = 0.0
        self._source = pattern(rank, dtype)
        self._shard_group = self._group_of(rank, [[r * shards + s for s in range(shards)] for r in range(replicas)])
        self._replica_group = self._group_of(rank, [[r * shards + s for r in range(replicas)] for s in range(shards)])
        self._buckets: list[Bucket] = []
        pending: list[torch.Tensor] = []
        for gradient in (torch.zeros(size, dtype=dtype) for size in tensor_sizes(elements)):
            if sum(g.nbytes for g in pending) + gradient.nbytes > BUCKET_BYTES:
                self._buckets.append(Bucket(pending, shards, way))
                pending = []
            pending.append(gradient)
        self._buckets.append(Bucket(pending, shards, way))
        self._gradients = [gradient for bucket in self._buckets for gradient in bucket.gradients]
        self._outputs = [part for bucket in self._buckets for part in bucket.parts]
        self._parameters = []
        for output in self._outputs:
            # The value of the parameter plays no part: one element stands for all of them.
            self._parameters.append(torch.nn.Parameter(torch.zeros(1, dtype=dtype).expand(output.numel())))
            self._parameters[-1].grad = output

    @staticmethod
    def _group_of(rank: int, members: list[list[int]]) -> dist.ProcessGroup:
        groups = [dist.new_group(ranks) for ranks in members]  # every rank makes all of them
        return next(group for group, ranks in zip(groups, members, strict=True) if rank in ranks)

    def fill(self) -> None:
        fill(self._gradients, self._source)

    def step(self) -> None:
        for bucket in self._buckets:
            getattr(bucket, self._way)(self._shard_group)
        works = []
        for bucket in self._buckets:
            bucket.wait()
            if self._replicas > 1:
                works.append(dist.all_reduce(bucket.output, group=self._replica_group, async_op=True))
        for work in works:
            work.wait()
        for bucket in self._buckets:
            bucket.output.div_(self._world_size)
        total = torch.nn.utils.get_total_norm(self._outputs).square()
        dist.all_reduce(total, group=self._shard_group)
        if self._max_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, total.sqrt())
        self._norm = float(total.sqrt())

    def result(self) -> dict[str, Any]:
        return result(self._norm, self._outputs) | {"squares": squares(self._outputs)}

    def close(self) -> None:
        dist.destroy_process_group()
