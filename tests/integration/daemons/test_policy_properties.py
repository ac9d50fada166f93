"""What holds for every run of norms, by `gradsyncd policy replay`."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import number, record, replay

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Few values, so that norms are often equal; a wide range, so that some are far from the others.
POSITIVE = st.one_of(st.sampled_from([0.25, 0.5, 1.0, 4.0]), st.floats(1e-6, 1e6))
BROKEN = st.sampled_from([math.nan, math.inf])
PERCENTILES = st.one_of(st.integers(1, 100), st.floats(0.01, 100))
SOME_BROKEN = st.lists(st.one_of(POSITIVE, POSITIVE, BROKEN), min_size=2, max_size=40).filter(
    lambda norms: any(map(math.isfinite, norms))  # else it is no trace
)
WINDOWS = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted)


def replayed(norms: list[float], *policies: str) -> list[list[dict[str, Any]]]:
    """By policy, what it would have done at each step."""
    with tempfile.TemporaryDirectory() as folder:
        lines = replay(record(Path(folder) / "run.jsonl", norms), *policies)
    return [[line["policies"][index] for line in lines] for index in range(len(policies))]


def thresholds(steps: list[dict[str, Any]]) -> list[float]:
    return [number(step["threshold"]) for step in steps]


@FEW
@given(st.lists(POSITIVE, min_size=1, max_size=40), PERCENTILES, PERCENTILES, WINDOWS)
def test_a_higher_percentile_is_no_lower_threshold(
    norms: list[float], one: float, other: float, sizes: list[int]
) -> None:
    lower, higher = sorted((one, other))
    shape = f"warmup={sizes[0]},window={sizes[1]},max_norm=none"
    low, high = replayed(norms, f"percentile:percentile={lower},{shape}", f"percentile:percentile={higher},{shape}")
    assert all(a <= b for a, b in zip(thresholds(low), thresholds(high), strict=True))


@FEW
@given(SOME_BROKEN, st.floats(1e-3, 1e3), PERCENTILES, WINDOWS)
def test_no_threshold_is_above_the_ceiling(
    norms: list[float], ceiling: float, percentile: float, sizes: list[int]
) -> None:
    shape = f"warmup={sizes[0]},window={sizes[1]},max_norm={ceiling!r}"
    for steps in replayed(
        norms, f"percentile:percentile={percentile},{shape}", f"zscore:warmup={sizes[1] + 1},max_norm={ceiling!r}"
    ):
        assert all(threshold <= ceiling for threshold in thresholds(steps))


@FEW
@given(SOME_BROKEN, PERCENTILES, WINDOWS)
def test_norms_that_are_not_finite_are_as_if_they_had_not_been(
    norms: list[float], percentile: float, sizes: list[int]
) -> None:
    finite = [norm for norm in norms if math.isfinite(norm)]
    policies = [
        f"percentile:percentile={percentile},warmup={sizes[0]},window={sizes[1]},max_norm=none",
        f"zscore:warmup={sizes[1] + 1},max_norm=none",
    ]
    whole = replayed(norms, *policies)
    alone = replayed(finite, *policies)
    for with_broken, without in zip(whole, alone, strict=True):
        kept = [step for step, norm in zip(with_broken, norms, strict=True) if math.isfinite(norm)]
        assert thresholds(kept) == thresholds(without)


@FEW
@given(SOME_BROKEN, PERCENTILES, WINDOWS)
def test_a_step_that_is_skipped_leaves_the_next_its_threshold(
    norms: list[float], percentile: float, sizes: list[int]
) -> None:
    shape = f"percentile={percentile},warmup={sizes[0]},window={sizes[1]},max_norm=none"
    (steps,) = replayed(norms, f"percentile:{shape},spike=skip,nonfinite=skip")
    for step, following in itertools.pairwise(steps):
        if step["action"] == "skip":
            assert step["threshold"] == following["threshold"]
