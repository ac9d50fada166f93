"""The reference against itself: stage by stage, in one sum, and as whole logical gradients it says the same."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from reference.cut import local_indices, local_part
from reference.declare import declarations, to_api
from reference.exact import norm
from reference.expected import norm_set
from reference.sync import error_bound, has_gradient, outputs, promised, staged
from reference.sync_collectives import DataCollective, data_collectives
from reference.sync_findings import sync_findings
from reference.sync_strategies import sync_worlds
from reference.sync_world import (
    SyncWorld,
    after_sync,
    groups,
    inputs,
    is_scattered,
    stages,
    summand_count,
    tied_with,
    whole_gradient,
)
from reference.world import Logical, World, held, holders, only, partial, replicate, rounded, shard

import gradsync
from gradsync._step._output import cuts_of, output_shape


@given(sync_worlds(unused=False))
def test_stages_leave_the_boxes_of_the_whole_gradient(sync: SyncWorld) -> None:
    after = after_sync(sync)
    for i, tensor in enumerate(after.tensors):
        whole = whole_gradient(sync, i)
        for rank, piece in staged(sync, i).items():
            assert [a.tolist() for a in piece.indices] == [b.tolist() for b in local_indices(after, tensor, rank)]
            scale = 1e-12 * (1 + float(piece.sizes.max(initial=0.0)))
            assert np.allclose(piece.values, local_part(after, tensor, rank, whole), rtol=0, atol=scale)


@given(sync_worlds())
def test_one_sum_is_what_the_stages_leave_within_its_rounding(sync: SyncWorld) -> None:
    for i, tensor in enumerate(sync.world.tensors):
        exact = staged(sync, i)
        summed = summand_count(sync.world, tensor) * len(tied_with(sync.world, i))
        for rank, values in promised(sync, i).items():
            assert values.shape == exact[rank].values.shape
            assert np.all(np.abs(values - exact[rank].values) <= error_bound(tensor, exact[rank], summed))


@given(sync_worlds())
def test_groups_are_summed_over_as_many_ranks_as_there_are_summands(sync: SyncWorld) -> None:
    for i, tensor in enumerate(sync.world.tensors):
        copies = tied_with(sync.world, i)
        members = [place for group in groups(sync.world, i) for place in group]
        assert sorted(members) == sorted((r, j) for j in copies for r in holders(sync.world, sync.world.tensors[j]))
        assert {len(group) for group in groups(sync.world, i)} == {summand_count(sync.world, tensor) * len(copies)}


@given(sync_worlds(unused=False))
def test_the_norm_is_that_of_the_whole_stored_gradients(sync: SyncWorld) -> None:
    world = after_sync(sync)
    found = sync_findings(sync, outputs(sync))
    counted = norm_set(world)
    assert found.counted_elements == sum(world.tensors[i].numel for i in counted)
    assert not found.divergence
    assert not found.missing
    wholes = [rounded(whole_gradient(sync, i), world.tensors[i].dtype) for i in counted]
    largest = max((float(np.abs(w).max(initial=0.0)) for w in wholes), default=0.0)
    # Not equal: the sums are rounded. Cancellation leaves little of them.
    sizes = max((float(np.abs(s).max(initial=0.0)) for s in sync.summands), default=0.0)
    elements = max(1, found.counted_elements)
    assert abs(found.norm - norm(wholes, world.norm_type)) <= 2e-2 * (largest + sizes) * elements


@given(sync_worlds())
def test_the_client_cuts_as_the_reference_does(sync: SyncWorld) -> None:
    world, after = sync.world, after_sync(sync)
    meshes = {n: gradsync.Mesh(m, sync_order=sync.sync_order.get(n)) for n, m in world.meshes.items()}
    given_inputs = inputs(sync)
    for rank, tensors in enumerate(declarations(world)):
        for row, tensor in enumerate(tensors):
            api = to_api(tensor)
            before = given_inputs[rank][row]
            assert before is None or api.held_shape == before.shape
            assert bool(cuts_of(api, meshes[tensor.mesh])) == is_scattered(sync, world.tensors[tensor.source])
            indices = local_indices(after, after.tensors[tensor.source], rank)
            assert output_shape(api, meshes[tensor.mesh], rank) == tuple(map(len, indices))


@pytest.mark.training
@given(sync_worlds())
def test_what_nobody_contributed_to_is_missing_or_absent(sync: SyncWorld) -> None:
    world = sync.world
    found = sync_findings(sync, outputs(sync))
    for i, tensor in enumerate(world.tensors):
        bare = [rank for rank in holders(world, tensor) if not has_gradient(sync, i, rank)]
        if len(bare) == len(holders(world, tensor)) and tensor.numel:
            assert tensor.name in found.absent
        elif tensor.tied is None:
            after = after_sync(sync)
            holding = [r for r in bare if all(len(j) for j in local_indices(after, after.tensors[i], r))]
            assert found.missing.get(tensor.name, []) == holding
    for rank, parts in enumerate(outputs(sync)):
        for i, part in zip(held(world, rank), parts, strict=True):
            assert (part is None) == (not has_gradient(sync, i, rank))


def world_of(meshes: dict[str, int], *tensors: Logical) -> World:
    return World(meshes={"dense": meshes}, tensors=tensors, values=(None,) * len(tensors))


def test_fsdp_over_tp_by_hand() -> None:
    """The walk of the decision: 6 × 4 over tp 2, then dp 2; unused on rank 2 its gradient is left out."""
    weight = Logical("w", (6, 4), (partial("mean", 0, "dp"), shard(0, "tp")))
    whole = np.arange(24.0).reshape(6, 4)
    sync = SyncWorld(world_of({"dp": 2, "tp": 2}, weight), (np.stack([whole, 3 * whole]),))
    assert [part[0].shape for part in outputs(sync) if part[0] is not None] == [(2, 4), (2, 4), (1, 4), (1, 4)]
    assert [part[0][0, 0] for part in outputs(sync) if part[0] is not None] == [0, 24, 16, 40]
    assert data_collectives(sync) == Counter([DataCollective("reduce_scatter", "dense", ("dp",), "float32", 48)])
    found = sync_findings(sync, outputs(sync))
    assert (found.norm, found.counted_elements) == (2 * math.sqrt((whole**2).sum()), 24)
    one_less = sync.with_unused((2, 0))
    assert [part[0][0, 0] for part in outputs(one_less) if part[0] is not None] == [0, 24, 4, 40]
    nobody = sync.with_unused((0, 0), (2, 0))
    assert sync_findings(nobody, outputs(nobody)).missing == {"w": [0, 2]}
    assert not sync_findings(nobody, outputs(nobody)).divergence


def test_a_replica_whose_group_has_nothing_is_divergence() -> None:
    tensor = Logical("w", (3,), (partial("sum", None, "dp"), replicate("tp")))
    sync = SyncWorld(world_of({"dp": 2, "tp": 2}, tensor), (np.ones((2, 3)),), frozenset({(0, 0), (2, 0)}))
    found = sync_findings(sync, outputs(sync))
    assert (found.missing, found.divergence) == ({"w": [0, 2]}, {"w": [0, 2]})
    assert (found.norm, found.counted_elements) == (math.sqrt(12), 3)


def test_tied_copies_are_one_sum() -> None:
    """An embedding in the first stage and a head in the last: each stage's dp sum, together, on all four ranks."""
    rules = (partial("mean", None, "dp"),)
    first = Logical("embedding", (2,), (only(0, "pp"), *rules), tied="e")
    last = Logical("head", (2,), (only(1, "pp"), *rules), tied="e")
    sync = SyncWorld(world_of({"pp": 2, "dp": 2}, first, last), (np.array([[1.0, 2], [3, 4]]), np.full((2, 2), 10.0)))
    assert [part[0].tolist() for part in outputs(sync) if part[0] is not None] == [[12, 13]] * 4
    found = sync_findings(sync, outputs(sync))
    assert (found.norm, found.counted_elements) == (math.sqrt(144 + 169), 2)
    half = sync.with_unused((0, 0), (1, 0))
    assert [part[0].tolist() for part in outputs(half) if part[0] is not None] == [[10, 10]] * 4
    assert not sync_findings(half, outputs(half)).missing


def test_stages_and_kinds_of_buckets() -> None:
    axes = {"pp": 2, "dp_replicate": 2, "dp_shard": 3, "tp": 2}
    hsdp = (partial("mean", None, "dp_replicate"), partial("mean", 0, "dp_shard"))
    stage = (only(0, "pp"),)
    tensors = (
        Logical("wq", (8, 6), (*stage, *hsdp, shard(1, "tp"))),
        Logical("wk", (7, 6), (*stage, *hsdp, shard(1, "tp"))),
        Logical("norm", (6,), (*stage, *hsdp, partial("sum", None, "tp"))),
        Logical("wv", (8, 6), (only(1, "pp"), *hsdp, shard(1, "tp"))),
        Logical("rope", (2,), (*stage, replicate("dp_replicate"), replicate("dp_shard"), replicate("tp")), divisor=2.0),
    )
    world = world_of(axes, *tensors)
    sync = SyncWorld(world, tuple(np.zeros((12 if t.name == "norm" else 6, *t.shape)) for t in tensors))
    assert [rule.axes for rule in stages(sync, tensors[2])] == [("tp",), ("dp_shard",), ("dp_replicate",)]
    assert data_collectives(sync) == Counter(
        [
            DataCollective("reduce_scatter", "dense", ("dp_shard",), "float32", (8 + 7) * 3 * 4),
            DataCollective("all_reduce", "dense", ("dp_replicate",), "float32", (3 + 3) * 3 * 4),
            DataCollective("all_reduce", "dense", ("tp",), "float32", 24),
            DataCollective("reduce_scatter", "dense", ("dp_shard",), "float32", 24),
            DataCollective("all_reduce", "dense", ("dp_replicate",), "float32", 8),
            DataCollective("reduce_scatter", "dense", ("dp_shard",), "float32", 8 * 3 * 4),
            DataCollective("all_reduce", "dense", ("dp_replicate",), "float32", 3 * 3 * 4),
        ]
    )
