"""The sums that predictions are made of: the right way is the reference's norm, roundings are torch's."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from planted import Logical, Planted, kinds, only, replicate, shard
from reference.declare import declarations, to_api
from reference.expected import answer
from reference.strategies import worlds
from reference.tables import local_values
from reference.world import World as Reference

from gradsync._audit._findings import Call, RankFindings, Step
from gradsync._audit._mistakes import RIGHT, mistakes
from gradsync._audit._sums import Sums, round_to, ulp
from gradsync._audit._world import World, combined
from gradsync._step._row import Row

DTYPES = ["float32", "float16", "bfloat16"]


def world_of(reference: Reference) -> World:
    ranks = {}
    for rank, declared in enumerate(declarations(reference)):
        parts = local_values(reference, rank)
        rows = [None if v is None else Row.of(v.reshape(-1).tolist(), reference.norm_type) for v in parts]
        own = [None if row is None else 0.0 for row in rows]
        tensors = [to_api(tensor) for tensor in declared]
        ranks[rank] = RankFindings(
            rank,
            reference.world_size,
            reference.meshes,
            tensors,
            reference.norm_type,
            steps=[Step(rows, own, [Call("clip", reference.norm_type, 1.0)])],
        )
    return World(ranks)


@given(worlds(min_tensors=1))
def test_the_right_way_is_the_norm_of_whole_gradients(reference: Reference) -> None:
    assume(all(len(rule.at) <= 1 for tensor in reference.tensors for rule in tensor.rules))
    world, wanted = world_of(reference), answer(reference).norm
    sums = Sums(world, 0)
    for rank in world.ranks:
        assert sums.exact(RIGHT, rank) == pytest.approx(wanted, rel=1e-12, abs=0)


@given(st.lists(st.floats(allow_nan=False, width=64), max_size=8), st.sampled_from([1.0, 2.0, 3.0, math.inf]))
def test_norms_of_norms_never_leave_the_doubles(values: list[float], p: float) -> None:
    found = combined(values, p)
    largest = max(map(abs, values), default=0.0)
    assert found >= largest * (1 - 1e-15)
    assert found <= largest * max(1, len(values)) * (1 + 1e-15) or math.isinf(largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_roundings_are_those_of_torch(dtype: str) -> None:
    chance = random.Random(3)
    values = [chance.choice([-1, 1]) * 10.0 ** chance.uniform(-9, 5.5) for _ in range(3000)]
    values += [0.0, 65504.0, 65519.99, 65520.0, 65536.0, 3.3895313892515355e38, 3.4e38, math.inf, -math.inf]
    for value in values:
        # In one rounding: by way of float32 some would be rounded twice, as bfloat16 is here.
        given = torch.tensor(value, dtype=torch.float32 if dtype == "bfloat16" else torch.float64)
        assert round_to(value, dtype) == float(given.to(getattr(torch, dtype))), value
    assert math.isnan(round_to(math.nan, dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_the_distance_of_neighbours(dtype: str) -> None:
    for value in (1.0, 1.5, 3.0, 1000.0):
        made = torch.tensor(value, dtype=getattr(torch, dtype))
        assert ulp(value, dtype) == torch.finfo(made.dtype).eps * 2.0 ** math.floor(math.log2(value))
    assert ulp(0.0, dtype) == ulp(math.inf, dtype) == 0.0


TENSORS = [
    Logical("copied", (5, 3), (replicate("dp"), replicate("ep"), only(0, "pp"))),
    Logical("split", (7, 2), (shard(0, "dp"), replicate("ep"), only(1, "pp"))),
    Logical("experts", (4, 3), (replicate("dp"), shard(0, "ep"), only(1, "pp"))),
    Logical("embed", (3, 3), (replicate("dp"), replicate("ep"), only(0, "pp")), tied="e"),
    Logical("head", (3, 3), (replicate("dp"), replicate("ep"), only(1, "pp")), tied="e"),
]


def big() -> Planted:
    return Planted({"dense": {"pp": 2, "dp": 3, "ep": 2}}, TENSORS)


def all_mistakes() -> list[str]:
    return [mistake.text for mistake in mistakes(world_of(big().steps[0]))]


def test_there_are_many_ways_to_be_wrong_and_no_two_are_the_same() -> None:
    found = mistakes(world_of(big().steps[0]))
    assert {mistake.kind for mistake in found} >= {
        "axis_missing",
        "first_only",
        "double_count",
        "summed_twice",
        "averaged",
        "norms_added",
        "local_only",
        "all_ranks",
        "tied_twice",
    }
    assert len(set(all_mistakes())) == len(found) > 30


@pytest.mark.parametrize("number", range(len(all_mistakes())))
def test_every_mistake_is_named_when_it_is_made(number: int) -> None:
    """The norm is by the audit's own sums: what is tested is that it is found among all others."""
    planted = big()
    worlds_by_step = [world_of(step) for step in planted.steps]
    mistake = mistakes(worlds_by_step[0])[number]

    def norm(planted: Planted, step: int, rank: int) -> float:
        return Sums(worlds_by_step[step], 0).exact(mistake.way, rank)

    verdict = planted.judge(norm)
    if verdict.lines[0].verdict == "differs":
        assert (mistake.kind, mistake.axis) in kinds(verdict)
        assert mistake.text in [cause.text for cause in verdict.lines[0].causes]
    else:  # norms averaged over an axis along which all are equal
        assert all(
            math.isclose(norm(planted, s, r), answer(planted.steps[s]).norm, rel_tol=verdict.tolerance)
            for s in range(2)
            for r in range(planted.size)
        )
