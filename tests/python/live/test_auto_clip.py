"""`Clip.auto()` against the algorithm of its source, word for word, by numpy; and `reduce="sum"` in the same way."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from real_daemon import MEAN, SUM, Ranks, all_ready

import gradsync
from gradsync import AutoClip, Clip, Percentile, Replicate, Row, Tensor
from gradsync._options import encode_options

sys.path.append(str(Path(__file__).parents[2]))

from reference.auto_clip import AutoClipToTheLetter, thresholds

WINDOW, WARMUP = 40, 10
POLICY = AutoClip(window=WINDOW, warmup=WARMUP)
HELD = [Tensor("w", (1,), placements={"dp": Replicate()})]


def source(ceiling: float = 1.0) -> AutoClipToTheLetter:
    return AutoClipToTheLetter(ceiling, 95.0, WINDOW, WARMUP)


def norms_of(kind: str) -> list[float]:
    random = numpy.random.default_rng(7)
    norms = [float(numpy.float32(value)) for value in random.lognormal(-1.5, 0.6, 300)]
    if kind == "broken":
        for index in range(60, 300, 97):
            norms[index] = (math.nan, math.inf)[index % 2]
    if kind == "many infinite":
        norms = [math.inf if random.random() < 0.02 else norm for norm in norms]
    if kind == "zeros":
        norms = [0.0 if index % 45 else norm for index, norm in enumerate(norms)]
    return norms


def step(grads: Any, norm: float, **given: Any) -> gradsync.StepReport:
    grads.write("w", Row.of([norm]))
    return grads.finish(**given)


def automatic(**given: Any) -> Clip:
    return replace(Clip.auto(window=WINDOW, warmup=WARMUP), **given)


@pytest.mark.parametrize("kind", ["finite", "broken", "many infinite", "zeros"])
def test_the_thresholds_have_the_bits_of_the_source(kind: str, ranks: Ranks) -> None:
    norms = norms_of(kind)

    def body(rank: int, job: gradsync.Job) -> list[gradsync.StepReport]:
        grads = job.declare(HELD, data_path="stats", clip=automatic(watch=(POLICY,)))
        return [step(grads, norm) for norm in norms]

    (reports,) = ranks(1, body)
    expected = thresholds(source(), norms)
    assert [report.threshold for report in reports] == expected
    assert [report.groups[0].watch[0].threshold for report in reports] == expected
    assert len(set(expected)) > 1
    assert (0.0 in expected) is (kind == "zeros")


@pytest.mark.parametrize("action", ["skip", "zero", "raise"])
def test_norms_are_remembered_whatever_becomes_of_their_steps(action: Any, ranks: Ranks) -> None:
    norms = norms_of("many infinite")
    clip = automatic(nonfinite=action, spike="clip" if action == "zero" else action)

    def body(rank: int, job: gradsync.Job) -> list[tuple[float, str]]:
        grads = job.declare(HELD, data_path="stats", clip=clip)
        found = []
        for norm in norms:
            try:
                report = step(grads, norm)
            except gradsync.ClipRaised as error:
                report = error.report
            found.append((report.threshold, report.groups[0].action))
        return found

    (found,) = ranks(1, body)
    assert [threshold for threshold, _ in found] == thresholds(source(), norms)
    assert action in {done for _, done in found}


def test_a_norm_that_was_only_looked_at_is_not_remembered(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[str]:
        grads = job.declare(HELD, data_path="stats", clip=automatic())
        digests = [step(grads, 0.5).policy_digest]
        for norm in (0.25, math.nan):
            grads.write("w", Row.of([norm]))
            grads.compute_norm()
            digests.append(grads.abandon().policy_digest)
        return [*digests, step(grads, 0.5).policy_digest]

    ((first, *looked, last),) = ranks(1, body)
    assert looked == [first, first]
    assert last != first


def test_a_saved_history_goes_on(ranks: Ranks) -> None:
    norms = norms_of("broken")

    def body(rank: int, job: gradsync.Job) -> list[float]:
        grads = job.declare(HELD, data_path="stats", clip=automatic())
        found = [step(grads, norm).threshold for norm in norms[:150]]
        state = grads.state_dict()
        assert set(state) == {"version", "policies"}
        for norm in norms[:20]:
            step(grads, norm)
        grads.load_state_dict(state)
        return [*found, *(step(grads, norm).threshold for norm in norms[150:])]

    assert ranks(1, body) == [thresholds(source(), norms)]


def test_a_state_of_a_percentile_is_none_of_auto(ranks: Ranks) -> None:
    numbers = {"window": WINDOW, "warmup": WARMUP}

    def body(rank: int, job: gradsync.Job) -> str:
        state = job.declare(HELD, data_path="stats", clip=Clip.percentile(**numbers)).state_dict()
        grads = job.declare(HELD, data_path="stats", clip=automatic())
        with pytest.raises(gradsync.errors.InvalidParams) as refused:
            grads.load_state_dict(state)
        return str(refused.value)

    (said,) = ranks(1, body)
    assert f"is of policy percentile 95, window {WINDOW}" in said
    assert f"the clip group has auto 95, window {WINDOW}" in said


def test_a_ceiling_of_a_step_takes_the_place_of_the_declared_one(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[float]:
        grads = job.declare(HELD, data_path="stats", clip=Clip.auto(percentile=50, window=4, warmup=2))
        ceilings = (gradsync.UNSET, 0.5, None, gradsync.UNSET, 0.5, 0.0)
        return [step(grads, 3.0, max_norm=ceiling).threshold for ceiling in ceilings]

    assert ranks(1, body) == [[1.0, 0.5, 3.0, 1.0, 0.5, 0.0]]


def test_the_defaults_are_those_of_the_source() -> None:
    clip = Clip.auto()
    assert (clip.max_norm, clip.policy) == (1.0, AutoClip(percentile=95.0, window=1000, warmup=100))
    wire = encode_options("arena", 1, 2.0, clip, "strict")
    assert wire["mode"] == "torch"
    policy = {"kind": "auto", "percentile": 95.0, "window": 1000, "warmup": 100}
    assert wire["clip"] == [{"group": "all", "max_norm": 1.0, "zero_rule": "zero", "policy": policy}]
    assert AutoClip() != Percentile()


def test_its_formula_is_that_of_all_clip_groups() -> None:
    both = {"a": Clip.auto(), "b": Clip.auto(ceiling=2.0)}
    assert encode_options("arena", 1, 2.0, both, "strict")["mode"] == "torch"
    mixed = {"a": Clip(max_norm=1.0), "b": Clip.auto()}
    with pytest.raises(gradsync.UsageError, match=r"clip\['b'\] is Clip.auto\(\), which has formula 'torch'"):
        encode_options("arena", 1, 2.0, mixed, "strict")
    assert encode_options("arena", 1, 2.0, mixed, "torch")["mode"] == "torch"
    watched = Clip.percentile(watch=[AutoClip()])
    assert encode_options("arena", 1, 2.0, watched, "strict")["mode"] == "strict"


def test_each_clip_group_has_norms_of_its_own(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[tuple[float, ...]]:
        tensors = [replace(HELD[0], name=name, clip_group=name) for name in ("a", "b")]
        clips = {name: Clip.auto(percentile=50, window=4, warmup=1) for name in ("a", "b")}
        grads = job.declare(tensors, data_path="stats", clip=clips)
        found = []
        for norms in [(0.5, 0.25), (0.75, math.nan), (0.75, 0.25)]:
            for tensor, norm in zip(tensors, norms, strict=True):
                grads.write(tensor.name, Row.of([norm]))
            found.append(tuple(group.threshold for group in grads.finish().groups))
        return found

    assert ranks(1, body) == [[(1.0, 1.0), (0.5, 0.25), (0.625, 1.0)]]


def torch_clip(gradient: numpy.ndarray, max_norm: float) -> tuple[float, numpy.ndarray]:
    """`clip_grad_norm_` of one gradient, by its formula; and the norm that it returns."""
    norm = numpy.float32(numpy.sqrt(numpy.sum(gradient.astype(numpy.float64) ** 2)))
    coefficient = numpy.minimum(numpy.float32(1), numpy.float32(max_norm) / (norm + numpy.float32(1e-6)))
    return float(norm), gradient * coefficient


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_two_ranks_train_as_the_source_does(reduce: str, ranks: Ranks) -> None:
    gradients = numpy.random.default_rng(1).lognormal(-2.0, 0.6, (60, 2, 8)).astype(numpy.float32)
    gradients[20] = 0
    gradients[30, 1, 3] = numpy.nan

    def body(rank: int, job: gradsync.Job) -> list[tuple[float, float, Any]]:
        placements = MEAN if reduce == "mean" else SUM
        tensors = [Tensor("w", (8,), placements=placements)]
        found = []
        grads = job.declare(tensors, clip=automatic())
        for both in gradients:
            grads.input("w").numpy()[:] = both[rank]
            all_ready(grads)
            report = grads.finish()
            found.append((report.norm, report.threshold, grads.output("w").numpy().copy()))
        return found

    loop = source()
    first, second = ranks(2, body)
    clipped = 0
    for step, (norm, threshold, result) in enumerate(first):
        numpy.testing.assert_equal(second[step][:2], (norm, threshold))
        reduced = gradients[step].sum(0) / (2 if reduce == "mean" else 1)
        assert threshold == loop.threshold(norm)
        exact, expected = torch_clip(reduced, threshold)
        numpy.testing.assert_allclose(norm, exact, rtol=3e-7)
        numpy.testing.assert_allclose(result, expected, rtol=3e-7)
        loop.append(norm)
        clipped += norm > threshold
    assert 0 < clipped < len(first)
