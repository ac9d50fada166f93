"""The reference against itself: cuts tile by brute force, and ADR 0008's program answers for whole gradients."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from reference.cut import local_indices, local_part, whole_elements
from reference.declare import declarations, to_api
from reference.expected import answer, collectives, norm_set, way
from reference.program import merge, run
from reference.rows import ROW, row_of
from reference.strategies import worlds
from reference.tables import tables
from reference.world import World, flat_index, holders


@given(worlds())
def test_shards_tile_and_replicas_are_equal(world: World) -> None:
    for tensor in world.tensors:
        mesh = world.meshes[tensor.mesh]
        splitting = [rule for rule in tensor.rules if rule.kind == "shard"]
        pieces = {}
        for rank in holders(world, tensor):
            place = tuple(flat_index(mesh, rule.axes, rank) for rule in splitting)
            mine = whole_elements(world, tensor, rank)
            assert pieces.setdefault(place, mine) == mine
            for index in local_indices(world, tensor, rank):  # a box: nothing is skipped
                assert len(index) == 0 or index.tolist() == list(range(int(index[0]), int(index[-1]) + 1))
        assert sorted(i for piece in pieces.values() for i in piece) == list(range(tensor.numel))
        held = sum(len(whole_elements(world, tensor, rank)) for rank in holders(world, tensor))
        assert held * len(pieces) == tensor.numel * len(holders(world, tensor))


@given(worlds())
def test_the_program_of_the_decision_gives_the_norm_of_the_whole(world: World) -> None:
    outcome = run(world, merge(world, declarations(world)), tables(world))
    wanted = answer(world)
    for rank in range(world.world_size):
        got = outcome.by_rank[rank]
        assert close(got[""], wanted.norm)
        assert all(close(got[f"group:{name}"], norm) for name, norm in wanted.groups.items())
        assert all(close(got[f"layer:{name}"], norm) for name, norm in wanted.layers.items())
    assert outcome.counted_elements == wanted.counted_elements
    assert outcome.nonfinite == wanted.nonfinite
    assert outcome.divergence == {}


@given(worlds())
def test_every_rank_adds_in_the_same_order(world: World) -> None:
    """Plain doubles, not associative: one order of addition differing between ranks would show in the last bit."""
    outcome = run(world, merge(world, declarations(world)), tables(world))
    assert len({rough.hex() for rough in outcome.rough}) == 1


@given(worlds())
def test_scalar_sums_run_over_shards_experts_and_stages_only(world: World) -> None:
    outcome = run(world, merge(world, declarations(world)), tables(world))
    assert outcome.collectives == [(c.level, c.groups, c.sums) for c in collectives(world)]
    for i in norm_set(world):
        tensor = world.tensors[i]
        mesh = world.meshes[tensor.mesh]
        replicated = [rule.axes for rule in tensor.rules if rule.kind == "replicate"]
        for _, groups in way(world, tensor):
            for axes in replicated:
                assert all(len({flat_index(mesh, axes, rank) for rank in group}) == 1 for group in groups)


@given(worlds())
def test_declarations_are_legal_values_of_the_client(world: World) -> None:
    for rank, tensors in enumerate(declarations(world)):
        for tensor in tensors:
            api = to_api(tensor)
            assert api.held_shape == local_part_shape(world, tensor.source, rank)
            assert set(api.encode(None)["placements"][0]) >= {"axes", "kind"} if api.placements else True


@given(worlds())
def test_rows_are_64_bytes_and_keep_what_the_norm_needs(world: World) -> None:
    for rows in tables(world, stamp=7):
        for row in rows:
            assert ROW.size == len(row.pack()) == 64
            assert row.stamp in (0, 7)
            assert math.isfinite(row.power_sum + row.power_sum_low)
            assert abs(row.power_sum_low) <= np.spacing(row.power_sum) / 2
            assert (row.power_sum > 0) == (row.maximum > 0 and math.isfinite(world.norm_type))


def test_a_row_of_known_values() -> None:
    row = row_of(np.array([3.0, -4.0, math.nan, math.inf]), 2.0, stamp=1)
    assert (row.power_sum, row.power_sum_low, row.scale, row.maximum) == (25.0, 0.0, 1.0, 4.0)
    assert (row.nonfinite, row.nan) == (2, 1)
    assert row_of(np.array([1e200, 1e200]), 2.0, stamp=1).power_sum == 2.0
    assert row_of(None, 2.0, stamp=1).stamp == 0


def local_part_shape(world: World, index: int, rank: int) -> tuple[int, ...]:
    tensor = world.tensors[index]
    return local_part(world, tensor, rank, np.zeros(tensor.shape)).shape


def close(got: float, wanted: float) -> bool:
    return got == wanted or (math.isnan(got) and math.isnan(wanted)) or abs(got - wanted) <= np.spacing(abs(wanted))
