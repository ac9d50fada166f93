"""gradsync_raw: the raw Python API against a daemon of this benchmark alone."""

from __future__ import annotations

from typing import Any, Literal

import gradsync
from gradients import MAX_NORM, dtype_of, fill, pattern, result, squares, tensor_shapes


class Contender:
    def __init__(
        self,
        rank: int,
        world_size: int,
        elements: int,
        dtype_name: str,
        axes: dict[str, int] | None = None,
        scattered: str | None = None,
        max_norm: float | None = MAX_NORM,
        ready: str = "each",
        partial_sums: Literal["exact", "bfloat16"] = "exact",
    ) -> None:
        """The mean over all `axes`, of which `scattered` leaves each rank its part along dim 0.

        `ready`: "each" says so of every tensor by itself, "all" of all of them with the call that finishes the step.
        """
        shapes, axes = tensor_shapes(elements), axes or {"dp": world_size}
        self._scattered = scattered is not None
        self._ready = ready
        self._norm = 0.0
        self._client = gradsync.connect()
        self._job = self._client.attach(
            job=f"bench_{ready}_{partial_sums}", rank=rank, world_size=world_size, meshes={"ranks": axes}
        )
        self._names = [f"tensor_{index}" for index in range(len(shapes))]
        placements = {
            axis: gradsync.Partial("mean") >> (gradsync.Shard(0) if axis == scattered else gradsync.Replicate())
            for axis in axes
        }
        self._grads = self._job.declare(
            [
                gradsync.Tensor(name, shape=shape, dtype=dtype_name, placements=placements)
                for name, shape in zip(self._names, shapes, strict=True)
            ],
            clip=gradsync.Clip(max_norm=max_norm),
            partial_sums=partial_sums,
        )
        self.inputs = [self._grads.input(name).torch().view(-1) for name in self._names]
        self.outputs = [self._grads.output(name).torch().view(-1) for name in self._names]
        self._source = pattern(rank, dtype_of(dtype_name))

    def fill(self) -> None:
        fill(self.inputs, self._source)

    def step(self) -> None:
        if self._ready == "all":
            self._norm = self._grads.finish(ready="all").norm
            return
        # Backward makes the last declared gradients ready first.
        for name in reversed(self._names):
            self._grads.ready(name)
        self._norm = self._grads.finish().norm

    def result(self) -> dict[str, Any]:
        found = result(self._norm, self.outputs)
        return found | {"squares": squares(self.outputs)} if self._scattered else found

    def close(self) -> None:
        self._job.detach()
        self._client.close()
