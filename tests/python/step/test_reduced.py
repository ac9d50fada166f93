"""Data path stats of the raw API: what is declared, what a row says, and when it may be sent."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon, Fault, report

import gradsync
from gradsync import Only, Replicate, Row, Shard, Tensor
from gradsync.errors import NotReady, RankLost, StepTimeout, UsageError

W = Tensor("w", (4,), local_shape=(2,), placements={"dp": Shard(0)})
B = Tensor("b", (3,), placements={"dp": Replicate()})


def test_a_declaration_says_its_data_path_and_asks_for_a_table(daemon: FakeDaemon, job: gradsync.Job) -> None:
    grads = job.declare([W, B], data_path="stats", formula="torch")
    assert isinstance(grads, gradsync.ReducedGrads)
    assert daemon.of("buffers.allocate")[-1]["bytes"] == 128
    params = daemon.of("gradients.declare")[-1]
    assert params["options"]["data_path"] == "stats"
    assert params["tensors"][0]["local_shape"] == [2]
    assert grads.check


def test_a_rank_that_holds_nothing_declares_nothing_and_takes_part(daemon: FakeDaemon, job: gradsync.Job) -> None:
    grads = job.declare([], data_path="stats")
    assert daemon.of("buffers.allocate")[-1]["bytes"] == 64
    assert grads.finish().norm == 2.0


def test_rows_carry_epoch_and_attempt(daemon: FakeDaemon, job: gradsync.Job) -> None:
    daemon.epoch, daemon.attempt = 3, 7
    grads = job.declare([W, B], data_path="stats")
    grads.write("w", Row(25.0, maximum=4.0))
    grads.write("b", None)
    assert daemon.table(1) == [((3 << 32) + 8, 25.0, 0.0, 1.0, 4.0, 0, 0, 0), (0,) + (0.0,) * 4 + (0,) * 3]
    grads.finish()
    assert daemon.of("step.finish")[-1]["ready"] == "all"
    assert grads.stamp == (3 << 32) + 9


def test_rows_of_the_step_before_are_not_sent_again(job: gradsync.Job) -> None:
    grads = job.declare([W, B], data_path="stats")
    grads.write("w", [3.0, 4.0])
    grads.write("b", [0.0, 0.0, 0.0])
    grads.finish()
    grads.write("w", None)
    with pytest.raises(NotReady) as caught:
        grads.finish()
    assert caught.value.tensors == ("b",)
    grads.write("b", None)
    grads.finish()


def test_a_failed_attempt_needs_new_rows(daemon: FakeDaemon, job: gradsync.Job) -> None:
    def fail(params: dict[str, Any]) -> Any:
        raise Fault("step_timeout", epoch=1, attempt=1)

    grads = job.declare([W], data_path="stats")
    grads.write("w", [1.0, 1.0])
    daemon.script["step.finish"] = fail
    with pytest.raises(StepTimeout):
        grads.finish()
    del daemon.script["step.finish"]
    with pytest.raises(NotReady):
        grads.finish()
    grads.write("w", [1.0, 1.0])
    assert daemon.table(1)[0][0] == (1 << 32) + 2
    grads.finish()


def test_norm_and_clip_come_apart(daemon: FakeDaemon, job: gradsync.Job) -> None:
    grads = job.declare([W], data_path="stats")
    grads.write("w", [1.0, 1.0])
    grads.compute_norm()
    with pytest.raises(UsageError, match="apply_clip"):
        grads.compute_norm()
    grads.apply_clip(max_norm=1.0)
    assert daemon.of("clip.apply")[-1]["max_norm"] == 1.0


def test_the_report_says_what_is_missing_and_what_travels(daemon: FakeDaemon, job: gradsync.Job) -> None:
    more = {
        "data_path": "stats",
        "missing": [{"tensor": "w", "ranks": [1]}],
        "scalar_collectives": [{"mesh": "default", "axes": ["dp"], "length": 3}],
        "check_next": False,
    }
    daemon.script["step.finish"] = lambda params: report(params["step"], attempt=params["attempt"], **more)
    grads = job.declare([W], data_path="stats")
    grads.write("w", None)
    found = grads.finish()
    assert found.missing == (gradsync.Missing("w", (1,)),)
    assert found.scalar_collectives == (gradsync.ScalarCollective("default", ("dp",), 3),)
    assert not found.check_next
    assert not grads.check


def test_a_new_epoch_begins_with_fingerprints_and_a_new_attempt_does_not(daemon: FakeDaemon, job: gradsync.Job) -> None:
    def fail(params: dict[str, Any]) -> Any:
        raise Fault("rank_lost", epoch=next(epochs), attempt=params["attempt"] + 1)

    epochs = iter((1, 2))

    grads = job.declare([W], data_path="stats")
    grads.write("w", [1.0, 1.0])
    daemon.script["step.finish"] = lambda params: report(params["step"], check_next=False)
    grads.finish()
    daemon.script["step.finish"] = fail
    for due in (False, True):
        grads.write("w", [1.0, 1.0])
        with pytest.raises(RankLost):
            grads.finish()
        assert grads.check is due


@pytest.mark.parametrize(
    ("more", "text"),
    [({"accumulate": 2}, "accumulate"), ({"data_path": "ipc"}, "data_path")],
)
def test_options_without_meaning_are_refused(job: gradsync.Job, more: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        job.declare([W], **({"data_path": "stats"} | more))


def test_a_divisor_is_refused(job: gradsync.Job) -> None:
    tensor = Tensor("w", (4,), placements={"dp": Replicate()}, divisor=2.0)
    with pytest.raises(UsageError, match="divisor"):
        job.declare([tensor], data_path="stats")


def test_row_of_values() -> None:
    row = Row.of([3.0, -4.0, math.nan, math.inf])
    assert row == Row(25.0, maximum=4.0, nonfinite=2, nan=1)
    assert Row.of([1.0, 2.0], 1.0) == Row(3.0, maximum=2.0)
    assert Row.of([1.0, -2.0], math.inf) == Row(0.0, maximum=2.0)
    assert Row.of([]) == Row(0.0)


def test_row_keeps_what_one_double_loses() -> None:
    row = Row.of([1.0, 2.0**-30])
    assert (row.power_sum, row.power_sum_low) == (1.0, 2.0**-60)


@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_row_rescales_what_leaves_the_doubles(value: float) -> None:
    row = Row.of([value, value / 2])
    assert row.scale <= value < 2 * row.scale
    assert math.frexp(row.scale)[0] == 0.5, "a power of two: dividing by it loses no digit"
    exact = (Fraction(value) / Fraction(row.scale)) ** 2 * Fraction(5, 4)
    assert Fraction(row.power_sum) + Fraction(row.power_sum_low) == pytest.approx(exact, rel=2.0**-104)
    assert row.maximum == value


def test_row_of_high_powers_is_divided_by_the_largest() -> None:
    row = Row.of([3.0, -6.0], 1000.0)
    assert (row.scale, row.power_sum, row.maximum) == (6.0, 1.0, 6.0)


def test_every_rank_adds_its_line_to_the_file(tmp_path: Path, job: gradsync.Job) -> None:
    path = tmp_path / "declaration.jsonl"
    path.write_text('{"gradsync_declaration":1,"world_size":9}\n{"rank":0}\n')
    grads = job.declare([W, B], data_path="stats")
    for _ in range(2):
        grads.save_declaration(path)
    head, line = map(json.loads, path.read_text().splitlines())
    assert (head["gradsync_declaration"], head["world_size"]) == (1, 1)
    assert head["meshes"] == [{"name": "default", "axes": [{"name": "dp", "size": 1}]}]
    assert head["options"]["data_path"] == "stats"
    assert line["rank"] == 0
    assert [tensor["name"] for tensor in line["tensors"]] == ["w", "b"]


def test_a_world_that_does_not_run_has_a_declaration_too(tmp_path: Path) -> None:
    path = tmp_path / "declaration.jsonl"
    ranks = [[Tensor("w", (4,), placements={"pp": Only(rank)})] for rank in range(2)]
    gradsync.write_declaration(path, {"m": {"pp": 2}}, ranks, norm_type=math.inf)
    head, *lines = map(json.loads, path.read_text().splitlines())
    assert head["world_size"] == 2
    assert head["options"]["norm_type"] == "Infinity"
    assert [line["tensors"][0]["placements"][0]["at"] for line in lines] == [[0], [1]]
