"""The daemon against the reference: random worlds, one daemon, every rank a connection, rows of an independent hand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import check_coefficient, check_collectives, same, told_norms
from hypothesis import given
from hypothesis import strategies as st
from product import Product, declare, fill, parts_of, plan_check, running, steps, told
from real_daemon import binary
from reference.cases import EVERY_AXIS, LAYER_NORM, PIPELINE_AND_EXPERTS, STAGES_BY_ONE_NAME
from reference.declare import Declared, declarations, to_api
from reference.expected import answer, norm_set, wide
from reference.faults import FAULTS, Fault
from reference.findings import Findings, findings
from reference.strategies import pick, worlds
from reference.world import World, holders

import gradsync
from gradsync.errors import DeclareTimeout, RpcError, UsageError


@pytest.fixture(scope="module")
def gradsyncd() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", binary())
        yield binary()


@pytest.fixture(scope="module")
def product(gradsyncd: str) -> Iterator[Product]:
    with running() as product:
        yield product


@pytest.mark.long
@given(worlds(min_tensors=1))
def test_the_daemon_answers_for_whole_gradients(product: Product, world: World) -> None:
    parts = parts_of(world)
    wanted, whole = findings(world, parts), answer(world)
    assert same(wanted.norm, whole.norm, double=True)
    assert wanted.counted_elements == whole.counted_elements
    once, measured, clipped = steps(product, world, parts)
    assert once.next_attempt == measured.attempt == 1
    assert not any(group.clipped for group in measured.groups)
    for report in (once, clipped):
        compare(world, report, wanted)
    assert [told_norms(report) for report in (once, measured)] == [told_norms(clipped)] * 2


def bend(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.reshape(-1)[0] = values.reshape(-1)[0] * 3 + 1
    return values


def put(value: float) -> Any:
    def poison(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values.reshape(-1)[-1] = value
        return values

    return poison


SPOILS = {"bent": bend, "NaN": put(math.nan), "infinite": put(-math.inf), "gone": lambda _: None}


@pytest.mark.long
@given(st.data())
def test_what_is_wrong_in_one_copy_is_named(product: Product, data: st.DataObject) -> None:
    world = data.draw(worlds(min_tensors=1))
    place = data.draw(st.composite(pick)(world))
    spoil = SPOILS[data.draw(st.sampled_from(sorted(SPOILS)))]
    parts = parts_of(world, {place: spoil})
    once, *_ = steps(product, world, parts)
    compare(world, once, findings(world, parts))


def has_tie(world: World) -> bool:
    values = world.values[-1]
    return world.tensors[-1].tied is not None and values is not None and values.size > 0


@pytest.mark.long
@given(worlds(min_tensors=1).filter(has_tie))
def test_a_gradient_that_a_tied_copy_alone_has_is_named(product: Product, world: World) -> None:
    (counted,) = (i for i in norm_set(world) if world.tensors[i].tied)
    tensor = world.tensors[counted]
    parts = parts_of(world, {(rank, counted): SPOILS["gone"] for rank in holders(world, tensor)})
    once, *_ = steps(product, world, parts)
    compare(world, once, findings(world, parts))
    assert tensor.name not in once.absent
    assert tensor.name in {found.tensor for found in once.missing}


def compare(world: World, report: gradsync.StepReport, wanted: Findings) -> None:
    any_wide = any(wide(world, group) for group in world.groups)
    assert same(report.norm, wanted.norm, double=any_wide)
    assert {layer.name for layer in report.layers} == set(wanted.layers)
    for layer in report.layers:
        assert same(layer.norm, wanted.layers[layer.name], double=True)
    assert {group.name for group in report.groups} == set(world.groups)
    for group in report.groups:
        is_wide = wide(world, group.name)
        assert same(group.norm, wanted.groups[group.name], double=is_wide)
        check_coefficient(group, world.max_norm[group.name], world.mode, is_wide)
    assert report.counted_elements == wanted.counted_elements
    assert sorted(report.absent) == sorted(wanted.absent)
    assert {found.tensor: list(found.ranks) for found in report.missing} == wanted.missing
    assert {found.tensor: list(found.ranks) for found in report.divergence} == wanted.divergence
    assert {found.tensor: found.count for found in report.nonfinite} == wanted.nonfinite
    assert {f.tensor: {i.rank: i.count for i in f.inputs} for f in report.nonfinite} == wanted.inputs
    assert report.found_inf == bool(wanted.nonfinite)
    check_collectives(world, report)


WORKED = {"pp-ep": PIPELINE_AND_EXPERTS, "tp": LAYER_NORM, "every-axis": EVERY_AXIS, "one-name": STAGES_BY_ONE_NAME}


@pytest.mark.parametrize("world", WORKED.values(), ids=WORKED.keys())
def test_worked_cases(product: Product, world: World) -> None:
    parts = parts_of(world)
    once, _, clipped = steps(product, world, parts)
    for report in (once, clipped):
        compare(world, report, findings(world, parts))


def test_pipeline_and_experts_come_to_the_root_of_192(product: Product, gradsyncd: str, tmp_path: Path) -> None:
    world, tensors, parts = PIPELINE_AND_EXPERTS, declarations(PIPELINE_AND_EXPERTS), parts_of(PIPELINE_AND_EXPERTS)
    path = tmp_path / "declaration.jsonl"

    def body(job: gradsync.Job) -> gradsync.StepReport:
        grads = declare(world, job, tensors[job.rank])
        grads.save_declaration(path)
        fill(grads, world, parts[job.rank])
        return grads.finish()

    reports = product.each(world, body)
    assert len({told(report) for report in reports}) == 1
    assert reports[0].norm == float(np.float32(math.sqrt(192)))
    assert reports[0].counted_elements == 192
    assert [(c.axes, c.length) for c in reports[0].scalar_collectives] == [(("ep",), 6), (("pp",), 6)]
    checked = plan_check(gradsyncd, path)
    assert (checked["ranks"], checked["tensors"], checked["counted_elements"]) == (8, 2, 192)
    assert [(c["axes"], c["length"]) for c in checked["scalar_collectives"]] == [(["ep"], 6), (["pp"], 6)]


def test_a_job_without_tensors_has_the_norm_0(product: Product) -> None:
    reports = product.each(LAYER_NORM, lambda job: job.declare([], data_path="stats").finish())
    assert [(report.norm, report.counted_elements) for report in reports] == [(0.0, 0)] * len(reports)


# The refusals that follow are asked for twice: of the daemon, by all ranks, and of `gradsyncd plan check`.
FAULT_IDS = [fault.name for fault in FAULTS]
BY_CLIENT = {"divisor"}  # the client refuses it before it asks


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
def test_a_wrong_declaration_is_refused_by_the_daemon(product: Product, fault: Fault) -> None:
    tensors = fault.declarations()
    # A rank that comes after the others were refused and left waits for its whole deadline.
    outcomes = product.outcomes(fault.world, lambda job: declare(fault.world, job, tensors[job.rank], timeout=10.0))
    assert all(isinstance(error, (RpcError, UsageError)) for error in outcomes)
    if BY_CLIENT & set(fault.fields):
        assert all(isinstance(error, UsageError) and ".divisor" in str(error) for error in outcomes)
        return
    # The others hear at once which rank's declaration was refused and why; only that rank has a path in its own.
    told = [error for error in outcomes if not isinstance(error, DeclareTimeout)]
    named = [error for error in told if not str(error).startswith("the declaration of rank ")]
    assert named
    for error in named:
        assert isinstance(error, RpcError)
        assert error.kind in ("invalid_declaration", "plan_mismatch", "unsupported_placement")
        assert error.tensor == fault.tensor
        assert field_of(error.path) in fault.fields


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
def test_a_wrong_declaration_is_refused_by_plan_check(gradsyncd: str, fault: Fault, tmp_path: Path) -> None:
    def check(ranks: list[list[Declared]]) -> dict[str, Any]:
        path = tmp_path / "declaration.jsonl"
        gradsync.write_declaration(path, fault.world.meshes, [[to_api(t) for t in tensors] for tensors in ranks])
        return plan_check(gradsyncd, path)

    assert check(declarations(fault.world))["ok"]
    refusal = check(fault.declarations())
    assert not refusal["ok"]
    assert refusal["kind"] in ("invalid_declaration", "plan_mismatch", "unsupported_placement")
    assert refusal["tensor"] == fault.tensor
    assert field_of(refusal["path"]) in fault.fields


def field_of(path: str | None) -> str:
    """`tensors[3].placements[0].axes[1]` → `placements`; a rank's tensors as a whole → `tensors`."""
    found = re.search(r"tensors\[\d+\]\.(\w+)", path or "")
    return found.group(1) if found else "tensors"
