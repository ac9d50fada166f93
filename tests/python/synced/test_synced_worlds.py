"""The daemon against the reference of sync: random worlds, every rank a connection that fills its own arena."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compared import check_coefficient, check_collectives, same
from hypothesis import assume, given
from hypothesis import strategies as st
from product import Product
from reference.expected import clipped, norm_set, wide
from reference.findings import Findings
from reference.sync import error_bound, has_gradient, promised, staged
from reference.sync_collectives import DataCollective, data_collectives
from reference.sync_findings import sync_findings
from reference.sync_strategies import sync_worlds
from reference.sync_world import SyncWorld, after_sync, divisor, inputs, stages, summand_count, tied_with, wide_axes
from reference.world import Logical, Rule, World, flat_size, holders, partial, replicate, rounded, shard
from sync_product import Rank, by_tensor, parts, steps

import gradsync


@given(sync_worlds(), st.integers(1, 2))
def test_the_daemon_reduces_as_the_stages_would(product: Product, sync: SyncWorld, accumulate: int) -> None:
    ranks = steps(product, sync, accumulate)
    compare_outputs(sync, ranks)
    wanted = sync_findings(sync, parts([rank.synced for rank in ranks]))
    compare(sync, ranks[0].measured, wanted, clips=False)
    for report in (ranks[0].clipped, ranks[0].once):
        compare(sync, report, wanted, clips=True)
    compare_clipped(sync, ranks)
    compare_explained(sync, ranks[0].explained)


@pytest.mark.training
@given(st.data())
def test_what_is_not_finite_is_named_where_it_came_from(product: Product, data: st.DataObject) -> None:
    sync = data.draw(sync_worlds())
    with_elements = [i for i, values in enumerate(sync.summands) if values.size]
    assume(with_elements)
    index = data.draw(st.sampled_from(with_elements))
    summands = [values.copy() for values in sync.summands]
    place = data.draw(st.integers(0, summands[index].size - 1))
    summands[index].reshape(-1)[place] = data.draw(st.sampled_from((math.nan, math.inf, -math.inf)))
    sync = replace(sync, summands=tuple(summands))
    ranks = steps(product, sync)
    with np.errstate(invalid="ignore"):
        compare_outputs(sync, ranks)
        wanted = sync_findings(sync, parts([rank.synced for rank in ranks]))
        compare(sync, ranks[0].once, wanted, clips=True)
        compare_clipped(sync, ranks)
    assert ranks[0].once.found_inf == bool(wanted.inputs)


@pytest.mark.training
@given(st.data())
def test_what_is_wrong_on_one_rank_is_named(product: Product, data: st.DataObject) -> None:
    """Its group gets it, other groups do not: the copies differ, and a NaN is in the norm though another is counted."""
    sync = data.draw(sync_worlds())
    given_inputs = by_tensor(sync, inputs(sync))
    places = [place for place, values in given_inputs.items() if values is not None and values.size]
    assume(places)
    index, rank = data.draw(st.sampled_from(places))
    values = given_inputs[index, rank].copy()
    bad = data.draw(st.sampled_from((math.nan, -math.inf, 2.0, 1024.0)))
    values.reshape(-1)[data.draw(st.integers(0, values.size - 1))] = bad
    sync = replace(sync, changed={(rank, index): values})
    ranks = steps(product, sync)
    with np.errstate(invalid="ignore"):
        compare_outputs(sync, ranks)
        compare(sync, ranks[0].once, sync_findings(sync, parts([rank.synced for rank in ranks])), clips=True)
        compare_clipped(sync, ranks)


def compare_outputs(sync: SyncWorld, ranks: list[Rank]) -> None:
    """Within one rounding of float64, to the bit as promised, and zero where only others have a gradient."""
    world = sync.world
    got = by_tensor(sync, [rank.synced for rank in ranks])
    for i, tensor in enumerate(world.tensors):
        if not any(has_gradient(sync, i, rank) for rank in holders(world, tensor)):
            continue  # absent: nothing is written
        exact, bits = staged(sync, i), promised(sync, i)
        summed = summand_count(world, tensor) * len(tied_with(world, i))
        for rank in holders(world, tensor):
            found, wanted = got[i, rank], exact[rank].values
            assert found.shape == wanted.shape, (tensor, rank)
            finite = np.isfinite(wanted)
            error, most = np.abs(found[finite] - wanted[finite]), error_bound(tensor, exact[rank], summed)[finite]
            assert np.all(error <= most), (tensor, rank)
            assert np.array_equal(found, bits[rank], equal_nan=True), (tensor, rank)


def compare_clipped(sync: SyncWorld, ranks: list[Rank]) -> None:
    """Every holder multiplies, whoever is counted; a second run of the step leaves the same bits."""
    world = sync.world
    by_group = {group.name: group for group in ranks[0].clipped.groups}
    before, after = (by_tensor(sync, [getattr(r, name) for r in ranks]) for name in ("synced", "after_clip"))
    bits, again = (by_tensor(sync, [getattr(r, name) for r in ranks]) for name in ("bits", "bits_again"))
    for i, tensor in enumerate(world.tensors):
        multiplier = by_group[tensor.clip_group].coefficient
        for rank in holders(world, tensor):
            if has_gradient(sync, i, rank):
                wanted = clipped(before[i, rank], multiplier, tensor.dtype)
                assert np.array_equal(after[i, rank], wanted, equal_nan=True), (tensor, rank)
                assert bits[i, rank] == again[i, rank], (tensor, rank)


def compare(sync: SyncWorld, report: gradsync.StepReport, wanted: Findings, *, clips: bool) -> None:
    world = sync.world
    assert same(report.norm, wanted.norm, double=any(wide(world, group) for group in world.groups))
    assert {layer.name for layer in report.layers} == set(wanted.layers)
    for layer in report.layers:
        assert same(layer.norm, wanted.layers[layer.name], double=True)
    assert {group.name for group in report.groups} == set(world.groups)
    for group in report.groups:
        assert same(group.norm, wanted.groups[group.name], double=wide(world, group.name))
        if clips:
            check_coefficient(group, world.max_norm[group.name], world.mode, wide(world, group.name))
    assert report.counted_elements == wanted.counted_elements
    assert with_elements(world, report.absent) == with_elements(world, wanted.absent)
    assert {found.tensor: list(found.ranks) for found in report.missing} == wanted.missing
    assert {found.tensor: list(found.ranks) for found in report.divergence} == wanted.divergence
    from_ranks = {found.tensor: {i.rank: i.count for i in found.inputs} for found in report.nonfinite}
    assert {name: ranks for name, ranks in from_ranks.items() if ranks} == wanted.inputs
    if not report.divergence:  # else the counted copy may have fewer of them than another
        counts = {found.tensor: found.count for found in report.nonfinite}
        counted = {world.tensors[i].name for i in norm_set(world)}
        assert {name: n for name, n in counts.items() if n} == pick(wanted.nonfinite, counted)
    assert report.data_path == "arena"
    check_collectives(after_sync(sync), report)


def pick(found: Mapping[str, int], names: Container[str]) -> dict[str, int]:
    return {name: number for name, number in found.items() if name in names}


def with_elements(world: World, names: Container[str]) -> list[str]:
    return sorted(tensor.name for tensor in world.tensors if tensor.name in names and tensor.numel)


def compare_explained(sync: SyncWorld, explained: dict[str, Any]) -> None:
    """What the plan says of itself: stages, copies after sync and divisor of every tensor, and what would travel."""
    world, after = sync.world, after_sync(sync)
    tensors = {tensor["name"]: tensor for tensor in explained["tensors"]}
    assert set(tensors) == {tensor.name for tensor in world.tensors}
    for i, tensor in enumerate(world.tensors):
        told = tensors[tensor.name]
        mesh = world.meshes[tensor.mesh]
        wanted = [
            (list(wide_axes(mesh, rule)), rule.op, flat_size(mesh, rule.axes), rule.to is not None)
            for rule in stages(sync, tensor)
        ]
        assert [(s["axes"], s["op"], s["size"], s["scatters"]) for s in told["stages"]] == wanted
        assert explained["buckets"][told["bucket"]]["divisor"] == divisor(sync, tensor)
        cut = math.prod(flat_size(mesh, rule.axes) for rule in after.tensors[i].rules if rule.kind == "shard")
        assert told["replication"] * cut == len(holders(world, tensor))
        assert told["counted_elements"] == (after.tensors[i].numel if i in norm_set(after) else 0)
    assert told_collectives(explained) == data_collectives(sync)


def told_collectives(explained: dict[str, Any]) -> Counter[DataCollective]:
    """Small worlds have one bucket of each kind."""
    meshes = {tensor["bucket"]: tensor["mesh"] for tensor in explained["tensors"]}
    return Counter(
        DataCollective(
            "reduce_scatter" if stage["scatters"] else "all_reduce",
            meshes[bucket["index"]],
            tuple(stage["axes"]),
            bucket["dtype"],
            size,
        )
        for bucket in explained["buckets"]
        for stage, size in zip(bucket["stages"], bucket["stage_bytes"], strict=True)
    )


SHARD_THEN_TWO_SCATTERS = (partial("mean", 1, "dp_shard"), partial("sum", 1, "cp"), shard(0, "tp"))
LARGE = {
    "rows": ((70001, 3), "float32", (partial("mean", 0, "dp"),), {"dp": 4}, 2.0),
    "columns": ((97, 523), "float32", (partial("mean", 1, "dp"),), {"dp": 3}, 2.0),
    "long-columns": ((3, 50021), "bfloat16", (partial("sum", 1, "dp"),), {"dp": 2}, 3.0),
    "middle": ((5, 61, 129), "float16", (partial("mean", 1, "dp"), replicate("tp")), {"tp": 2, "dp": 2}, math.inf),
    "nested": ((64, 1031), "float64", SHARD_THEN_TWO_SCATTERS, {"dp_shard": 2, "cp": 3, "tp": 2}, 1.0),
    "whole": ((40, 1031), "bfloat16", (partial("mean", None, "dp"), shard(1, "tp")), {"dp": 2, "tp": 2}, 2.0),
}


@pytest.mark.parametrize(("shape", "dtype", "rules", "mesh", "p"), LARGE.values(), ids=LARGE.keys())
def test_more_than_a_piece_of_work(
    product: Product, shape: tuple[int, ...], dtype: str, rules: tuple[Rule, ...], mesh: dict[str, int], p: float
) -> None:
    """Tensors that the daemon takes in several pieces, whose parts lie in the inputs in many runs."""
    tensors = (Logical("w", shape, rules, dtype=dtype), Logical("small", (3, 5, 7), rules, dtype=dtype))
    world = World(meshes={"dense": mesh}, tensors=tensors, values=(None,) * 2, norm_type=p, max_norm={"all": 0.5})
    generator = np.random.default_rng(5)
    made = [generator.standard_normal((summand_count(world, tensor), *tensor.shape)) for tensor in tensors]
    sync = SyncWorld(world, tuple(rounded(values, dtype) for values in made))
    ranks = steps(product, sync)
    compare_outputs(sync, ranks)
    wanted = sync_findings(sync, parts([rank.synced for rank in ranks]))
    compare(sync, ranks[0].once, wanted, clips=True)
    compare_clipped(sync, ranks)
