"""Cases whose numbers are known by hand, and the bugs that made them famous."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from reference.cases import EVERY_AXIS, LAYER_NORM, PIPELINE_AND_EXPERTS
from reference.declare import declarations
from reference.expected import answer, clipped, collectives, partition
from reference.program import Outcome, merge, run
from reference.tables import local_values, tables
from reference.world import World, held, holders


def outcome_of(world: World, **more: object) -> Outcome:
    return run(world, merge(world, declarations(world)), tables(world, **more))  # type: ignore[arg-type]


def test_pipeline_and_experts_come_to_the_root_of_192() -> None:
    world = PIPELINE_AND_EXPERTS
    outcome = outcome_of(world)
    assert {result[""] for result in outcome.by_rank} == {math.sqrt(192)}
    assert outcome.counted_elements == 192
    assert [(level, groups) for level, groups, _ in outcome.collectives] == [
        (1, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (2, ((0, 2, 4, 6), (1, 3, 5, 7))),
    ]
    coefficient = answer(world).coefficients["all"]
    for rank in range(8):
        assert [held(world, rank)] == [[[0], [1], [], []][rank // 2]]
        for part in local_values(world, rank):
            assert part is not None
            assert np.all(clipped(part, coefficient, "float32") == np.float64(np.float32(1 / math.sqrt(192))))


def test_wrong_groups_show_as_known_factors() -> None:
    """What each forgotten or added sum would give here, so that the right number is no accident."""
    world = PIPELINE_AND_EXPERTS
    assert wrong(world, 0, expert_axis="replicate") == 16  # twice: the layer norm of both experts' ranks
    assert wrong(world, 1, expert_axis="replicate") == math.sqrt(128)  # EP forgotten: half of the experts


def wrong(world: World, index: int, expert_axis: str) -> float:
    """The norm with the squares of one tensor summed as if it were treated the other way on `ep`."""
    squares = 0.0
    for i, tensor in enumerate(world.tensors):
        rows = [tables(world)[rank][0].power_sum for rank in holders(world, tensor)]
        split = any(rule.kind == "shard" for rule in tensor.rules)
        squares += sum(rows) if split != (i == index) else rows[0]
    return math.sqrt(squares)


def test_the_filter_of_the_norm_set_stays_out_of_the_clip_set() -> None:
    world = LAYER_NORM
    outcome = outcome_of(world)
    assert {result[""] for result in outcome.by_rank} == {10.0}
    coefficient = answer(world).coefficients["all"]
    parts = [local_values(world, rank) for rank in range(2)]
    right = [[clipped(part, coefficient, "float32") for part in found if part is not None] for found in parts]
    assert np.array_equal(right[0][0], right[1][0])
    # The bug: what is counted once is clipped once. Neither norm shows it; only the comparison of the copies does.
    filtered = [right[0], [parts[1][0], right[1][1]]]
    assert filtered[1][0] is not None
    assert not np.array_equal(filtered[0][0], filtered[1][0])
    bug = outcome_of(
        world,
        spoilt={
            (0, 0): lambda v: v * coefficient,
            (0, 1): lambda v: v * coefficient,
            (1, 1): lambda v: v * coefficient,
        },
    )
    assert bug.divergence == {"layer_norm.weight": [1]}


def test_every_axis_at_once() -> None:
    world = EVERY_AXIS
    outcome = outcome_of(world)
    squares = 28 * 4 + 5 * 9 + 24 + 300
    assert all(result[""] == math.sqrt(squares) for result in outcome.by_rank)
    assert all(result["group:experts"] == 18 for result in outcome.by_rank)
    assert outcome.counted_elements == 28 + 5 + 24 + 3
    found = {(c.level, c.groups) for c in collectives(world)}
    assert found == {
        (0, partition(world, "dense", ("dp_shard", "tp"))),
        (0, partition(world, "dense", ("dp_shard",))),
        (1, partition(world, "expert", ("ep", "ep_tp"))),
        (1, partition(world, "expert", ("ep",))),
        (2, partition(world, "dense", ("pp",))),
    }


def test_no_tensors_at_all_have_norm_zero() -> None:
    world = replace(PIPELINE_AND_EXPERTS, tensors=(), values=(), max_norm={})
    outcome = outcome_of(world)
    assert {result[""] for result in outcome.by_rank} == {0.0}
    assert outcome.collectives == []


def test_equal_partitions_of_two_meshes_are_one_collective() -> None:
    """The pipeline of the dense and of the expert mesh are the same ranks: one sum, not two."""
    assert sum(c.level == 2 for c in collectives(EVERY_AXIS)) == 1
