"""`make demo-adaptive` in short: a run that is resumed is the undisturbed one, and what differs is said."""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from daemon import BINARY

sys.path.append(str(Path(__file__).parents[2]))

from reference.auto_clip import AutoClip, thresholds

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "clients/python/examples"
DEADLINE_S = 300


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("demo_adaptive")


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 10)
def test_a_resumed_run_has_the_thresholds_and_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    if not os.access(BINARY, os.X_OK):
        pytest.skip("no gradsyncd binary: build it, or set GRADSYNCD")
    settings = ["--steps=60", "--window=20", "--warmup=5", f"--gradsyncd={BINARY}", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo_adaptive.py"), *settings],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out/adaptive.json").read_text())
    assert report["steps"] == 60
    assert report["stopped_after"] == 30
    assert 0 < report["clipped_fraction"] < 1
    assert report["max_threshold_diff"] == 0
    assert report["resumed_bit_equal"] is True
    assert report["ranks_bit_equal"] is True
    assert report["steps_below_ceiling"] > 5, "the percentile decided nothing"
    assert (tmp_path / "out/adaptive.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--steps=1", "--steps 1"),
        ("--ranks=0", "--ranks 0"),
        ("--percentile=0", "percentile"),
        ("--window=0", "window"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    example: ModuleType, argument: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        example.parse_options([f"--gradsyncd={sys.executable}", argument])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


SETTINGS = argparse.Namespace(steps=40, ranks=2, percentile=90.0, window=10, warmup=4, ceiling=1.0, seed=1)


def a_run() -> list[list[dict]]:
    """A run of two ranks, as they write it."""
    draw = random.Random(7)
    norms = [draw.lognormvariate(-0.5, 0.5) for _ in range(SETTINGS.steps)]
    rows = [
        {
            "kind": "step",
            "step": step,
            "norm": norm,
            "threshold": limit,
            "clipped": norm > limit,
            "remembered": f"{step}",
        }
        for step, (norm, limit) in enumerate(zip(norms, thresholds(AutoClip(1.0, 90.0, 10, 4), norms), strict=True))
    ]
    return [[*copy.deepcopy(rows), {"kind": "end", "weights": "00", "parameters": 1}] for _ in range(2)]


def compared(example: ModuleType, whole: list[list[dict]], resumed: list[list[dict]]) -> tuple[dict, list[str]]:
    end = {"kind": "end", "weights": "11", "parameters": 1}
    before, after = [[*rank[:20], end] for rank in resumed], [rank[20:] for rank in resumed]
    report, faults = example.compare(whole, before, after, SETTINGS)
    return report, faults


def test_equal_runs_pass(example: ModuleType) -> None:
    report, faults = compared(example, a_run(), a_run())
    assert faults == []
    assert (report["max_threshold_diff"], report["resumed_bit_equal"], report["ranks_bit_equal"]) == (0, True, True)


def test_a_threshold_that_is_one_bit_off_is_found(example: ModuleType) -> None:
    whole = a_run()
    for run in (whole, resumed := a_run()):
        for rank in run:
            rank[30]["threshold"] = math.nextafter(rank[30]["threshold"], 2)
    report, faults = compared(example, whole, resumed)
    assert report["max_threshold_diff"] > 0
    assert report["resumed_bit_equal"] is True
    assert len(faults) == 4
    assert all("threshold of step 30" in fault for fault in faults)


@pytest.mark.parametrize(("row", "key", "said"), [(25, "remembered", "step 25"), (-1, "weights", "final weights")])
def test_a_resumed_run_that_goes_another_way_is_found(example: ModuleType, row: int, key: str, said: str) -> None:
    resumed = a_run()
    for rank in resumed:
        rank[row][key] = "ff"
    report, faults = compared(example, a_run(), resumed)
    assert report["resumed_bit_equal"] is False
    assert report["ranks_bit_equal"] is True
    assert len(faults) == 2
    assert all("not as undisturbed" in fault and said in fault for fault in faults)


def test_ranks_that_differ_are_found(example: ModuleType) -> None:
    whole = a_run()
    whole[1][-1]["weights"] = "ff"
    report, faults = compared(example, whole, copy.deepcopy(whole))
    assert report["ranks_bit_equal"] is False
    assert report["resumed_bit_equal"] is True
    assert len(faults) == 2
