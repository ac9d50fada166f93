"""`Clip.auto()` against the algorithm of its source, word for word, by numpy; and `reduce="sum"` in the same way."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from real_daemon import MEAN, SUM, Ranks, all_ready

import gradsync
from gradsync import AutoClip, Clip, Tensor
from gradsync._options import encode_options
from gradsync._step._norm_history import NormHistory
from gradsync._step._step_request import UNSET

WINDOW, WARMUP = 40, 10


class Source:
    """The source's loop around `clip_grad_norm_`."""

    def __init__(self, grad_clip_norm: float, window: int, warmup: int) -> None:
        self.grad_clip_norm, self.window, self.warmup = grad_clip_norm, window, warmup
        self.grad_norm_history: list[float] = []

    def effective_clip(self) -> float:
        if len(self.grad_norm_history) >= self.warmup:
            with numpy.errstate(invalid="ignore"):
                adaptive_threshold = float(numpy.percentile(self.grad_norm_history, 95.0))
            return min(self.grad_clip_norm, adaptive_threshold)
        return self.grad_clip_norm

    def append(self, total_norm: float) -> None:
        self.grad_norm_history.append(total_norm)
        if len(self.grad_norm_history) > self.window:
            self.grad_norm_history.pop(0)


def norms_of(kind: str) -> list[float]:
    random = numpy.random.default_rng(7)
    norms = [float(value) for value in random.lognormal(-1.5, 0.6, 300)]
    if kind == "broken":
        for index in range(60, 300, 97):
            norms[index] = (math.nan, math.inf)[index % 2]
    if kind == "many infinite":
        norms = [math.inf if random.random() < 0.02 else norm for norm in norms]
    if kind == "zeros":
        norms = [0.0 if index % 45 else norm for index, norm in enumerate(norms)]
    return norms


@pytest.mark.parametrize("kind", ["finite", "broken", "many infinite", "zeros"])
def test_the_thresholds_have_the_bits_of_the_source(kind: str) -> None:
    source = Source(1.0, WINDOW, WARMUP)
    history = NormHistory(AutoClip(window=WINDOW, warmup=WARMUP), 1.0)
    found = set()
    for norm in norms_of(kind):
        limit = history.limit(UNSET)
        assert limit == source.effective_clip()
        found.add(limit)
        history.append(norm)
        source.append(norm)
    assert len(found) > 1
    if kind == "zeros":
        assert 0.0 in found


def test_a_saved_history_goes_on() -> None:
    policy = AutoClip(window=WINDOW, warmup=WARMUP)
    whole, first, second = (NormHistory(policy, 1.0) for _ in range(3))
    norms = norms_of("broken")
    for norm in norms[:150]:
        whole.append(norm)
        first.append(norm)
    second.load(first.save())
    for norm in norms[150:]:
        assert second.limit(UNSET) == whole.limit(UNSET)
        whole.append(norm)
        second.append(norm)


def test_a_ceiling_of_a_step_takes_the_place_of_the_declared_one() -> None:
    history = NormHistory(AutoClip(window=4, warmup=2), 1.0)
    assert (history.limit(UNSET), history.limit(0.5), history.limit(None)) == (1.0, 0.5, None)
    history.load([3.0, 3.0])
    assert (history.limit(UNSET), history.limit(0.5), history.limit(None)) == (1.0, 0.5, 3.0)


def test_the_defaults_are_those_of_the_source() -> None:
    clip = Clip.auto()
    assert (clip.max_norm, clip.policy) == (1.0, AutoClip(percentile=95.0, window=1000, warmup=100))
    wire = encode_options("arena", 1, 2.0, clip, "strict")
    assert wire["mode"] == "torch"
    assert wire["clip"] == [{"group": "all", "max_norm": 1.0, "zero_rule": "zero", "policy": {"kind": "fixed"}}]


def test_it_is_refused_where_it_cannot_be_what_it_is() -> None:
    with pytest.raises(gradsync.UsageError, match="only the daemon watches"):
        Clip(watch=(AutoClip(),))
    with pytest.raises(gradsync.UsageError, match="as one clip group"):
        encode_options("arena", 1, 2.0, {"a": Clip.auto(), "b": Clip()}, "strict")


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
        clip = Clip.auto(window=WINDOW, warmup=WARMUP)
        found = []
        grads = job.declare([Tensor("w", (8,), placements=placements)], clip=clip)
        for step, both in enumerate(gradients):
            if step == 25:  # a restart from a checkpoint
                state = grads.state_dict()
                grads = job.declare([Tensor("w", (8,), placements=placements)], clip=clip)
                grads.load_state_dict(state)
            grads.input("w").numpy()[:] = both[rank]
            all_ready(grads)
            report = grads.finish()
            found.append((report.norm, report.threshold, grads.output("w").numpy().copy()))
        return found

    source = Source(1.0, WINDOW, WARMUP)
    first, second = ranks(2, body)
    clipped = 0
    for step, (norm, threshold, result) in enumerate(first):
        numpy.testing.assert_equal(second[step][:2], (norm, threshold))
        reduced = gradients[step].sum(0) / (2 if reduce == "mean" else 1)
        assert threshold == source.effective_clip()
        exact, expected = torch_clip(reduced, threshold)
        numpy.testing.assert_allclose(norm, exact, rtol=3e-7)
        numpy.testing.assert_allclose(result, expected, rtol=3e-7)
        source.append(norm)
        clipped += norm > threshold
    assert 0 < clipped < len(first)
