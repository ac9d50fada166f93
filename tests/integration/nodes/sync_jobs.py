"""Jobs over nodes whose gradients the daemons reduce. Values are small integers, so that every sum is exact in any
order and in every format; what a rank has to hold afterwards is computed here with numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from node_faults import soon
from node_jobs import NodeRank
from ranks_in_threads import whole

from gradsync import Partial, Replicate, Shard, Tensor
from gradsync.errors import ConnectionLost, NodeLost, RankLost, StaleAttempt, StaleEpoch, StepTimeout

Array = np.ndarray[Any, Any]
Way = Literal["all", "scattered", "split"]  #: summed for all; summed and scattered by rows; not summed, other columns
LOST = (NodeLost, RankLost, StaleEpoch, StaleAttempt, StepTimeout, ConnectionLost)


@dataclass(frozen=True)
class Part:
    """A tensor, and what becomes of it along each axis of the mesh."""

    name: str
    shape: tuple[int, ...]  #: before sync, on a rank
    ways: dict[str, Way]
    dtype: str = "float32"
    users: Callable[[int], bool] = field(default=lambda rank: True)  #: ranks that have a gradient of it

    def declared(self, axes: dict[str, int]) -> Tensor:
        to = {"all": Partial("sum") >> Replicate(), "scattered": Partial("sum") >> Shard(0), "split": Shard(1)}
        columns = math.prod(axes[axis] for axis, way in self.ways.items() if way == "split")
        shape = self.shape if columns == 1 else (self.shape[0], self.shape[1] * columns)
        local = {} if columns == 1 else {"local_shape": self.shape}
        placements = {axis: to[way] for axis, way in self.ways.items()}
        return Tensor(self.name, shape, dtype=self.dtype, placements=placements, **local)

    def given(self, rank: int, step: int) -> Array:
        count = math.prod(self.shape)
        return ((np.arange(count) + len(self.name) + step) % 7 + rank % 4 - 2).astype(np.float32).reshape(self.shape)

    def summed(self, axes: dict[str, int], rank: int, step: int) -> Array | None:
        """The sum that this rank has a part of; None: nobody contributes."""
        own = coordinates(axes, rank)
        split = [axis for axis, way in self.ways.items() if way == "split"]
        group = [
            other
            for other in range(math.prod(axes.values()))
            if self.users(other) and all(coordinates(axes, other)[axis] == own[axis] for axis in split)
        ]
        return sum((self.given(other, step) for other in group), np.zeros(self.shape, np.float32)) if group else None

    def expected(self, axes: dict[str, int], rank: int, step: int) -> Array | None:
        held = self.summed(axes, rank, step)
        for axis, way in self.ways.items():
            if held is not None and way == "scattered":
                rows = -(-len(held) // axes[axis])
                first = rows * coordinates(axes, rank)[axis]
                held = held[first : first + rows]
        return held


def coordinates(axes: dict[str, int], rank: int) -> dict[str, int]:
    found = np.unravel_index(rank, tuple(axes.values()))
    return {axis: int(at) for axis, at in zip(axes, found, strict=True)}


def ddp(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    return {"dp": nodes * per_node}, [
        Part("whole", (257, 3), {"dp": "all"}),
        Part("half", (333,), {"dp": "all"}, "bfloat16"),
        Part("double", (31, 2), {"dp": "all"}, "float64"),
        Part("scalar", (), {"dp": "all"}),
        Part("of one rank", (65,), {"dp": "all"}, users=lambda rank: rank == 1),
        Part("of one node", (65,), {"dp": "all"}, users=lambda rank: rank < per_node),
        Part("of nobody", (65,), {"dp": "all"}, users=lambda rank: False),
    ]


def fsdp(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    """Each rank gets rows of its own; the last ones get few, or none."""
    world = nodes * per_node
    return {"dp": world}, [
        Part("rows", (4 * world + 1, 5), {"dp": "scattered"}),
        Part("half", (world + 1, 9), {"dp": "scattered"}, "bfloat16"),
        Part("some", (world, 3), {"dp": "scattered"}, users=lambda rank: rank % 2 == 0),
    ]


def hsdp(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    """Replicas on each node, which are cut within it."""
    return {"replicate": nodes, "shard": per_node}, [
        Part("rows", (4 * per_node + 1, 5), {"replicate": "all", "shard": "scattered"}),
        Part("half", (2 * per_node, 9), {"replicate": "all", "shard": "scattered"}, "bfloat16"),
        Part("norm", (65,), {"replicate": "all", "shard": "all"}),
    ]


def across(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    """Cut over nodes, and split into columns within each."""
    return {"shard": nodes, "tp": per_node}, [
        Part("rows", (4 * nodes + 1, 6), {"shard": "scattered", "tp": "split"}),
        Part("whole", (33, 4), {"shard": "all", "tp": "split"}, "bfloat16"),
        Part("norm", (65,), {"shard": "all", "tp": "all"}),
    ]


def large(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    """More than fits into the memory for blocks, and into the buffers of sockets."""
    return {"dp": nodes * per_node}, [Part(f"large {index}", (1 << 20, 5), {"dp": "all"}) for index in range(4)]


def medium(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    """More than fits into the buffers of sockets."""
    return {"dp": nodes * per_node}, [Part(f"medium {index}", (1 << 20,), {"dp": "all"}) for index in range(3)]


Layout = Callable[[int, int], tuple[dict[str, int], list[Part]]]


class SyncRank(NodeRank):
    """A rank of a job on `arena`."""

    layout: Layout = staticmethod(ddp)

    def meshes(self) -> dict[str, dict[str, int]] | None:
        self.axes, self.parts = type(self).layout(self.world_size // self.per_node, self.per_node)
        return {"mesh": self.axes}

    def declare(self, **options: Any) -> None:
        self.grads = self.job.declare([part.declared(self.axes) for part in self.parts], **options)

    def write(self, step: int, copied: Any = None) -> None:
        for part in self.parts:
            memory = self.grads.input(part.name).numpy()
            if part.users(self.rank):
                given = part.given(self.rank, step)
                memory[...] = bits_of(given) if part.dtype == "bfloat16" else given
                self.grads.ready(part.name)
            else:
                memory[...] = 77  # which must not be read
                self.grads.mark_unused(part.name)

    def check_held(self, step: int, coefficient: float = 1.0) -> None:
        for part in self.parts:
            exact = part.expected(self.axes, self.rank, step)
            if exact is None:
                continue
            held = self.grads.output(part.name).numpy()
            wanted = exact * np.float32(coefficient)
            wanted = bits_of(wanted) if part.dtype == "bfloat16" else wanted
            assert held.shape == wanted.shape, (part.name, self.rank, held.shape, wanted.shape)
            assert np.array_equal(held, wanted), (part.name, self.rank, step, held, wanted)

    def step_until_done(self, step: int) -> Any:
        report = super().step_until_done(step)
        self.check_held(step)
        return report


def with_layout(layout: Layout) -> type[SyncRank]:
    return type(f"SyncRank_{layout.__name__}", (SyncRank,), {"layout": staticmethod(layout)})


class MediumRank(SyncRank):
    """It has a name in a module, so that a process can have one."""

    layout = staticmethod(medium)


def bits_of(values: Array) -> Array:
    """Those of a bfloat16; the values need no rounding."""
    bits: Array = np.ascontiguousarray(values, np.float32).view(np.uint32)
    assert not np.any(bits & 0xFFFF), "not a bfloat16"
    return (bits >> 16).astype(np.uint16).reshape(values.shape)


def exact_norm(rank: SyncRank, step: int) -> float:
    """The norm of the whole model: each element counts once."""
    total = 0.0
    for part in rank.parts:
        groups: dict[tuple[int, ...], int] = {}
        split = [axis for axis, way in part.ways.items() if way == "split"]
        for other in range(rank.world_size):
            at = coordinates(rank.axes, other)
            groups.setdefault(tuple(at[axis] for axis in split), other)
        for one in groups.values():
            held = part.summed(rank.axes, one, step)
            total += 0.0 if held is None else float(np.sum(held.astype(np.float64) ** 2))
    return math.sqrt(total)


def check_sync(ranks: Sequence[SyncRank], step: int, reports: Sequence[Any]) -> None:
    """Every rank holds what it has to, to the bit, and all have the same numbers."""
    whole(list(reports))
    exact = np.float32(exact_norm(ranks[0], step))
    for rank, report in zip(ranks, reports, strict=True):
        assert report.step == step
        assert abs(np.float32(report.norm) - exact) <= np.spacing(exact), (report.norm, exact)
        rank.check_held(step)
    assert len({(report.norm, report.coefficient) for report in reports}) == 1


def sync_again(ranks: Sequence[SyncRank], step: int) -> None:
    check_sync(ranks, step, whole(soon(ranks, lambda rank: rank.step_until_done(step)).result()))
