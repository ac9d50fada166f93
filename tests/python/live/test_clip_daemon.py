"""Policies and actions against a real gradsyncd, on both data paths: hundreds of steps, and NaN in one gradient."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from clip_paths import SIZE, Arena, Stats, plain, spoiled
from real_daemon import Ranks

import gradsync
from gradsync import Clip, Observe, Percentile, StepReport, ZScore
from gradsync.errors import ClipRaised, InvalidDeclaration, PlanMismatch

sys.path.append(str(Path(__file__).parents[2]))

from reference.auto_clip import AutoClip, ZClip, thresholds

STEPS = 400
DTYPES = {"float32": numpy.float32, "float64": numpy.float64}


def done(run: Arena | Stats, *gradients: numpy.ndarray) -> tuple[StepReport, str | None]:
    """The report of a step, and the clip group that raised."""
    try:
        return run.step(*gradients), None
    except ClipRaised as error:
        return error.report, error.group


def run_of_gradients(dtype: str) -> list[numpy.ndarray]:
    """Norms that fall, with rare large ones."""
    draw = random.Random(17)
    whole = []
    for step in range(STEPS):
        scale = draw.lognormvariate(-2.0 * step / STEPS, 0.4) * (8 if draw.random() < 0.02 else 1)
        whole.append(numpy.array([draw.gauss(0, scale) for _ in range(SIZE)]).astype(DTYPES[dtype]))
    return whole


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", [Arena, Stats])
def test_thresholds_of_a_run_are_those_of_the_sources(ranks: Ranks, path: Any, dtype: str) -> None:
    watch = [ZScore(z=1.5, alpha=0.9, warmup=10), Observe(), Percentile(percentile=37.5, window=64, warmup=10)]
    clip = Clip.percentile(1.5, percentile=90, window=100, warmup=20, watch=watch)

    def body(rank: int, job: gradsync.Job) -> list[StepReport]:
        run = path(job, clip, dtype)
        return [run.step(gradient) for gradient in run_of_gradients(dtype)]

    first, second = ranks(2, body)
    assert [report.groups for report in first] == [report.groups for report in second]
    assert [report.policy_digest for report in first] == [report.policy_digest for report in second]
    assert len({report.policy_digest for report in first}) == STEPS
    norms = [report.norm for report in first]
    clipped = thresholds(AutoClip(1.5, 90, 100, 20), norms)
    assert [report.threshold for report in first] == clipped
    assert [report.clipped for report in first] == [norm > most for norm, most in zip(norms, clipped, strict=True)]
    assert STEPS // 20 < sum(report.clipped for report in first) < STEPS // 2
    zscore, observe, percentile = ([report.groups[0].watch[i] for report in first] for i in range(3))
    assert [said.threshold for said in percentile] == thresholds(AutoClip(1.5, 37.5, 64, 10), norms)
    assert {(said.threshold, said.clipped) for said in observe} == {(math.inf, False)}
    wanted = thresholds(ZClip(1.5, 1.5, 0.9, 10), norms)
    assert [said.clipped for said in zscore] == [norm > most for norm, most in zip(norms, wanted, strict=True)]
    for said, most in zip(zscore, wanted, strict=True):
        assert not said.clipped or said.threshold == pytest.approx(most, rel=1e-12)


def test_the_max_norm_of_a_step_is_its_ceiling(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[list[float], list[float]]:
        grads = Arena(job, Clip.percentile(None, percentile=50, window=4, warmup=2)).grads
        found = []
        for norm, max_norm in [(1.0, gradsync.UNSET), (3.0, gradsync.UNSET), (5.0, 10.0), (5.0, 1.5), (5.0, None)]:
            grads.input("all").numpy()[:] = [norm, 0, 0, 0, 0, 0]
            grads.ready("all")
            found.append(grads.finish(max_norm=max_norm).threshold)
        return found

    assert ranks(2, body) == [[math.inf, math.inf, 2.0, 1.5, 4.0]] * 2


@pytest.mark.parametrize("path", [Arena, Stats])
@pytest.mark.parametrize("action", ["skip", "zero", "raise"])
def test_nan_in_one_gradient(ranks: Ranks, path: Any, action: str) -> None:
    """One of two clip groups finds NaN; the steps before and after it are not affected."""
    clip = {"a": Clip.percentile(1.0, window=4, warmup=1, nonfinite=action), "b": Clip(max_norm=1.0)}

    def body(rank: int, job: gradsync.Job) -> tuple[StepReport, StepReport, list[numpy.ndarray]]:
        run = path(job, clip)
        run.step(plain(1.0), plain(1.0))
        report, raised_by = done(run, spoiled(rank), plain(2.0))
        assert raised_by == ("a" if action == "raise" else None)
        results = run.results() if path is Arena else []
        return report, run.step(plain(1.0), plain(1.0)), results

    found = ranks(2, body)
    for report, after, results in found:
        groups = {group.name: group for group in report.groups}
        assert math.isnan(groups["a"].norm)
        assert report.found_inf
        assert [one.tensor for one in report.nonfinite] == ["a"]
        assert (report.action, report.skipped) == (("step", False) if action == "zero" else (action, True))
        assert groups["a"].action == action
        assert groups["b"].action == ("step" if action == "zero" else action)
        assert (groups["a"].clipped, groups["b"].clipped) == (False, True)
        assert groups["b"].coefficient == pytest.approx(1 / (2 * math.sqrt(SIZE)) if action == "zero" else 1.0)
        if results:
            mean_of_nan, other = results
            assert (not mean_of_nan.any()) if action == "zero" else math.isnan(mean_of_nan[-1])
            numpy.testing.assert_allclose(other, plain(groups["b"].coefficient * 2.0), rtol=1e-6)
        assert (after.action, after.step, after.attempt) == ("step", report.step + 1, report.attempt + 1)
        assert after.groups[0].threshold == 1.0  # of one norm, √6, and the ceiling: NaN is not remembered
    assert [report.groups[1] for report, _, _ in found] == [found[0][0].groups[1]] * 2


@pytest.mark.parametrize("action", ["skip", "raise"])
def test_spikes(ranks: Ranks, action: str) -> None:
    clip = Clip.percentile(None, percentile=50, window=4, warmup=2, spike=action, spike_factor=2)

    def body(rank: int, job: gradsync.Job) -> list[tuple[str, bool, float]]:
        run, found = Arena(job, clip), []
        for value in (1.0, 1.0, 1.5, 2.5, 1.0):
            report, _ = done(run, plain(value))
            found.append((report.action, report.groups[0].spike, report.threshold))
        return found

    first, second = ranks(2, body)
    assert first == second
    assert [(acted, spike) for acted, spike, _ in first] == [
        ("step", False),
        ("step", False),
        ("step", False),
        (action, True),
        ("step", False),
    ]
    assert first[4][2] == first[3][2]  # the spike is not remembered


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rank_has_the_result_whether_steps_before_were_clipped_or_not(ranks: Ranks, dtype: str) -> None:
    """After clipped steps the daemon expects another one, and writes some ranks' results later."""
    values = [4.0, 4.0, 4.0, 0.125, 4.0, 4.0, 0.125, 4.0, 4.0, 4.0, math.nan, 4.0, 4.0, 4.0]
    clip = Clip(max_norm=1.0, nonfinite="skip")

    def body(rank: int, job: gradsync.Job) -> list[tuple[StepReport, numpy.ndarray]]:
        run, found = Arena(job, clip, dtype), []
        for value in values:
            share = numpy.full(SIZE, value * (0.5 + rank), dtype=DTYPES[dtype])  # the mean is the value
            found.append((run.step(share), run.results()[0]))
        return found

    first, second = ranks(2, body)
    for value, (report, result), (_, other) in zip(values, first, second, strict=True):
        assert result.tobytes() == other.tobytes()
        numpy.testing.assert_allclose(result.astype(numpy.float64), value * report.coefficient, rtol=1e-6)
    assert [report.clipped for report, _ in first] == [value == 4.0 for value in values]


@pytest.mark.parametrize("path", [Arena, Stats])
def test_the_group_that_decided_is_named(ranks: Ranks, path: Any) -> None:
    """A spike beside what is not finite decides nothing, though its group is the first that found something."""
    clip = {
        "a": Clip(max_norm=1.0, spike="raise", spike_factor=2),
        "b": Clip(max_norm=1.0, nonfinite="raise"),
        "c": Clip(max_norm=1.0, spike="skip", spike_factor=2),
    }

    def body(rank: int, job: gradsync.Job) -> list[tuple[str, str, str | None]]:
        run = path(job, clip)
        found = []
        for values in ((9.0, spoiled(rank), 0.1), (0.1, 0.1, 9.0), (0.1, 0.1, 0.1)):
            gradients = [plain(value) if isinstance(value, float) else value for value in values]
            report, raised_by = done(run, *gradients)
            found.append((report.action, report.decided_by, raised_by))
            decided = [group for group in report.groups if group.name == report.decided_by]
            assert report.reason == (decided or report.groups)[0].reason
        return found

    assert ranks(2, body) == [[("raise", "b", "b"), ("skip", "c", None), ("step", "", None)]] * 2


def test_ranks_that_declare_other_policies_are_told_what_differs(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        Arena(job, Clip.percentile(percentile=95 - rank))

    for outcome in ranks.outcomes(2, body):
        assert isinstance(outcome, PlanMismatch)
        assert "percentile 95" in str(outcome)
        assert "percentile 94" in str(outcome)


def test_norms_beyond_what_a_daemon_remembers_are_refused(ranks: Ranks) -> None:
    clip = {f"g{i}": Clip.percentile(window=50_000, warmup=1) for i in range(11)}

    def body(rank: int, job: gradsync.Job) -> None:
        Arena(job, clip)

    (outcome,) = ranks.outcomes(1, body)
    assert isinstance(outcome, InvalidDeclaration)
    assert outcome.path == "options.clip"
