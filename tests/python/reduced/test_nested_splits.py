"""Two second opinions on shards: what DTensor computes, and what fully_shard over tensor parallelism really holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from reference.cut import local_offset, local_shape
from reference.world import Logical, World, coordinates, shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Shard, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore


def world_of(shape: tuple[int, ...], dp: int, tp: int, dims: tuple[int, int], tp_first: bool) -> World:
    order = ("tp", "dp") if tp_first else None
    tensor = Logical("w", shape, (shard(dims[0], "dp"), shard(dims[1], "tp")), split_order=order)
    return World(meshes={"dense": {"dp": dp, "tp": tp}}, tensors=(tensor,), values=(np.zeros(shape),))


def by_dtensor(world: World, rank: int, placements: list[object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    mesh = world.meshes["dense"]
    at = list(coordinates(mesh, rank).values())
    shape, offset = _compute_local_shape_and_global_offset(
        torch.Size(world.tensors[0].shape), tuple(mesh.values()), at, placements
    )
    return tuple(shape), tuple(offset)


@given(
    st.integers(0, 12), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.integers(0, 1)
)
def test_plain_shards_are_those_of_dtensor(rows: int, columns: int, dp: int, tp: int, i: int, j: int) -> None:
    world = world_of((rows, columns), dp, tp, (i, j), tp_first=False)
    for rank in range(world.world_size):
        shape, offset = by_dtensor(world, rank, [Shard(i), Shard(j)])
        assert local_shape(world, world.tensors[0], rank) == shape
        mine = local_offset(world, world.tensors[0], rank)
        assert all(o == m for o, m, extent in zip(offset, mine, shape, strict=True) if extent)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_even_strided_shards_are_tp_first_splits(times: int, dp: int, tp: int) -> None:
    world = world_of((times * dp * tp,), dp, tp, (0, 0), tp_first=True)
    for rank in range(world.world_size):
        found = by_dtensor(world, rank, [_StridedShard(0, split_factor=tp), Shard(0)])
        assert found == (local_shape(world, world.tensors[0], rank), local_offset(world, world.tensors[0], rank))


@pytest.mark.parametrize(("rows", "dp", "tp"), [(8, 2, 2), (7, 3, 2), (5, 2, 2), (9, 2, 3)])
@pytest.mark.filterwarnings("ignore")
def test_fully_shard_over_tensor_parallel_chunks_what_tp_left(rows: int, dp: int, tp: int) -> None:
    """Held for real, unlike DTensor's own arithmetic, which gives an uneven `_StridedShard` another size and place."""
    world = world_of((rows, 4), dp, tp, (0, 0), tp_first=True)
    for rank in range(world.world_size):
        assert held_by_fully_shard(rows, dp, tp, rank) == local_shape(world, world.tensors[0], rank)


def held_by_fully_shard(rows: int, dp: int, tp: int, rank: int) -> tuple[int, ...]:
    """The local weight of one rank; a fake process group stands in for the others."""
    dist.init_process_group("fake", rank=rank, world_size=dp * tp, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        model = torch.nn.Sequential(torch.nn.Linear(4, rows))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        return tuple(model[0].weight.to_local().shape)
    finally:
        dist.destroy_process_group()
