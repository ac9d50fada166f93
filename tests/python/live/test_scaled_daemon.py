"""Steps with a loss scale, and measurements that are abandoned, against a real gradsyncd on both data paths."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from clip_paths import Arena, Stats, plain, spoiled
from real_daemon import Ranks

import gradsync
from gradsync import Clip, StepReport

PATHS = pytest.mark.parametrize("path", [Arena, Stats])
PERCENTILE = Clip.percentile(None, percentile=50, window=8, warmup=1)


def fill(run: Any, *gradients: numpy.ndarray) -> Any:
    """The gradients of a step, which is not ended."""
    for tensor, gradient in zip(run.grads.tensors, gradients, strict=True):
        if isinstance(run, Arena):
            run.grads.input(tensor.name).numpy()[:] = gradient
            run.grads.ready(tensor.name)
        else:
            run.grads.write(tensor.name, gradient[run.part].tolist())
    return run.grads


def in_one(grads: Any, **how: Any) -> StepReport:
    report: StepReport = grads.finish(**how)
    return report


def in_halves(grads: Any, **how: Any) -> StepReport:
    grads.compute_norm(**how)
    report: StepReport = grads.apply_clip()
    return report


@PATHS
@pytest.mark.parametrize("end", [in_one, in_halves])
@pytest.mark.parametrize("how", [{"scale": 1.0}, {"scaled": True}])
def test_no_group_remembers_a_step_with_nan_in_one(ranks: Ranks, path: Any, end: Any, how: dict[str, Any]) -> None:
    def body(rank: int, job: gradsync.Job) -> list[StepReport]:
        run = path(job, {"a": PERCENTILE, "b": PERCENTILE})
        steps = [(plain(1.0), plain(1.0)), (spoiled(rank), plain(2.0)), (plain(1.0), plain(1.0))]
        return [end(fill(run, *step), **how) for step in steps]

    for before, found, after in ranks(2, body):
        assert (found.action, found.skipped, found.found_inf) == ("skip", True, True)
        assert [group.action for group in found.groups] == ["skip", "skip"]
        assert found.policy_digest == before.policy_digest != after.policy_digest
        assert [group.threshold for group in after.groups] == [group.norm for group in before.groups]


@PATHS
@pytest.mark.parametrize("end", [in_one, in_halves])
@pytest.mark.parametrize("nonfinite", ["propagate", "skip", "zero", "raise"])
def test_a_scale_skips_whatever_was_declared(ranks: Ranks, path: Any, end: Any, nonfinite: Any) -> None:
    def body(rank: int, job: gradsync.Job) -> list[StepReport]:
        run = path(job, Clip(max_norm=1.0, nonfinite=nonfinite))
        return [end(fill(run, gradient), scale=8.0) for gradient in (spoiled(rank), plain(8.0))]

    for found, after in ranks(2, body):
        assert (found.action, found.skipped, found.groups[0].action) == ("skip", True, "skip")
        assert math.isnan(found.norm)
        assert (after.action, after.step) == ("step", 1)
        assert after.norm == pytest.approx(math.sqrt(6))


@PATHS
def test_a_norm_that_is_abandoned_is_neither_remembered_nor_obeyed(ranks: Ranks, path: Any) -> None:
    """The norms are a spike and NaN, at which the clip group is declared to raise."""
    clip = Clip.percentile(1.0, percentile=50, window=8, warmup=1, nonfinite="raise", spike="raise")

    def body(rank: int, job: gradsync.Job) -> list[StepReport]:
        run = path(job, clip)
        reports = [in_one(fill(run, plain(1.0)))]
        for gradient in (plain(100.0), spoiled(rank)):
            grads = fill(run, gradient)
            grads.compute_norm()
            reports.append(grads.abandon())
            if path is Arena and rank == 0:
                assert math.isnan(run.results()[0][-1]) or (run.results()[0] == gradient).all()
        return [*reports, in_one(fill(run, plain(1.0)))]

    for before, spike, nan, after in ranks(2, body):
        assert [report.step for report in (before, spike, nan, after)] == [0, 1, 2, 3]
        assert (spike.action, nan.action) == ("step", "step")
        assert (spike.coefficient, nan.coefficient) == (1.0, 1.0)
        assert before.policy_digest == spike.policy_digest == nan.policy_digest != after.policy_digest
        assert after.action == "step"
