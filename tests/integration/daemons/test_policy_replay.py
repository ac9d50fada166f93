"""`gradsyncd policy replay` beside re-implementations of the sources, step by step."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon import run_command
from traces import number, record, replay

sys.path.append(str(Path(__file__).parents[2]))

from reference.auto_clip import AutoClip, AutoClipToTheLetter, ZClip, thresholds

STEPS = 5000


def stationary(draw: random.Random, step: int) -> float:
    return draw.lognormvariate(-1.5, 0.4)


def drifting(draw: random.Random, step: int) -> float:
    return draw.lognormvariate(1.0 - 4 * step / STEPS, 0.3)


def spiky(draw: random.Random, step: int) -> float:
    return draw.lognormvariate(-1.5, 0.4) * (50 if step % 83 == 0 else 1)


def with_nan(draw: random.Random, step: int) -> float:
    return math.nan if step % 59 == 0 else math.inf if step % 101 == 0 else draw.lognormvariate(-1.5, 0.4)


def few_values(draw: random.Random, step: int) -> float:
    return draw.choice([0.0, 0.25, 0.5, 4.0])


SHAPES = [stationary, drifting, spiky, with_nan, few_values]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_thresholds_are_those_of_the_sources(shape: Any, tmp_path: Path) -> None:
    draw = random.Random(20261122)
    norms = [shape(draw, step) for step in range(STEPS)]
    policies = {
        "percentile": AutoClip(),
        "percentile:percentile=37.5,window=64,warmup=10,max_norm=0.3": AutoClip(0.3, 37.5, 64, 10),
        "percentile:percentile=100,window=1,warmup=1,max_norm=1e9": AutoClip(1e9, 100, 1, 1),
        "auto:window=50,warmup=10": AutoClipToTheLetter(window=50, warmup=10),  # shorter than from NaN to NaN
        "auto:percentile=20,window=40,warmup=10,max_norm=0.3": AutoClipToTheLetter(0.3, 20, 40, 10),
        "zscore": ZClip(),
        "zscore:z=1.5,alpha=0.9,warmup=5,max_norm=1e9": ZClip(1e9, 1.5, 0.9, 5),
    }
    lines = replay(record(tmp_path / "run.jsonl", norms), *policies)
    assert len(lines) == STEPS
    for index, clipper in enumerate(policies.values()):
        clipped = 0
        for step, wanted in enumerate(thresholds(clipper, norms)):
            found = lines[step]["policies"][index]
            clips = math.isfinite(norms[step]) and norms[step] > wanted
            assert found["clipped"] is (clips or norms[step] == math.inf), (step, found)
            clipped += clips
            if isinstance(clipper, AutoClip):
                assert number(found["threshold"]) == wanted, (step, found)
            elif clips:
                assert number(found["threshold"]) == pytest.approx(wanted, rel=1e-12), (step, found)
        assert clipped > 0


def test_one_step_in_twenty_of_a_stationary_run_is_clipped(tmp_path: Path) -> None:
    draw = random.Random(7)
    lines = replay(
        record(tmp_path / "run.jsonl", [stationary(draw, step) for step in range(STEPS)]), "percentile:max_norm=none"
    )
    after_warmup = [line["policies"][0]["clipped"] for line in lines[100:]]
    assert 0.04 <= sum(after_warmup) / len(after_warmup) <= 0.06


def test_a_trace_comes_by_standard_input_too(tmp_path: Path) -> None:
    path = record(tmp_path / "run.jsonl", [0.5] * 200)
    with path.open() as trace:
        result = run_command("policy", "replay", "-", "--policy", "percentile", stdin=trace)
    assert result.returncode == 0
    assert "200 steps, 0 to 199" in result.stdout


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("percentile:percentile=0", "percentile is 0, a number in (0, 100] is expected"),
        ("percentile:window=50", "warmup is 100, 1 to 50 norms are expected"),
        ("fixed:max_norm=-1", "max_norm is -1, a number > 0 is expected"),
        ("percentiles", "there is no policy 'percentiles'"),
    ],
)
def test_a_wrong_policy_is_refused_with_field_and_value(policy: str, said: str, tmp_path: Path) -> None:
    result = run_command("policy", "replay", str(record(tmp_path / "run.jsonl", [1.0])), "--policy", policy)
    assert result.returncode == 64
    assert said in result.stderr
    assert result.stdout == ""


def test_a_trace_without_a_finite_norm_is_refused(tmp_path: Path) -> None:
    result = run_command(
        "policy", "replay", str(record(tmp_path / "run.jsonl", [math.nan] * 3)), "--policy", "percentile"
    )
    assert result.returncode == 1
    assert "3 norms and 0 other lines, and no norm is finite" in result.stderr
