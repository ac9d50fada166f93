"""`gradsync observe` on scripts of DeepSpeed and Megatron-Core, which clip by functions of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import deepspeed_scripts
import megatron_scripts
import pytest
from forms import some_of
from observed import PATIENT, Run, ranks

STRICT = (*PATIENT, "--strict")

pytestmark = pytest.mark.long
DEEPSPEED = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
MEGATRON = pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")


def check_all_is_well(run: Run, tensors: int, steps: int = 2) -> None:
    """The scripts make a step more, which ends by `os._exit` and keeps its result to itself."""
    assert run.code == 0, run.said
    assert (run.summary["findings"], run.summary["notes"], run.warnings) == ({}, [], []), run.said
    assert run.summary["tensors"] == tensors
    assert run.summary["compared"] == run.summary["steps"] == len(run.lines) == steps
    assert all(abs(line["relative_difference"]) < 1e-6 and line["norm"] > 0.01 for line in run.lines)


@DEEPSPEED
@pytest.mark.parametrize("stage", some_of(["0", "2", "3"], ["2"]))
def test_the_steps_of_deepspeed_are_observed(tmp_path: Path, stage: str) -> None:
    run = Run(tmp_path, *ranks("trains", script=deepspeed_scripts.__file__), options=STRICT, STAGE=stage)
    check_all_is_well(run, 6)


@DEEPSPEED
def test_a_clip_by_torch_beside_deepspeeds_steps_is_said(tmp_path: Path) -> None:
    command = ranks("clips_by_torch_what_zero_keeps_elsewhere", script=deepspeed_scripts.__file__)
    run = Run(tmp_path, *command, options=STRICT, STAGE="2")
    assert run.code == 0, run.said
    assert len(run.lines) >= 2
    (note,) = run.summary["notes"]
    assert "set gradient_clipping in DeepSpeed's configuration" in note


@DEEPSPEED
def test_what_of_deepspeed_cannot_be_observed_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("takes_muon_for_adam", script=deepspeed_scripts.__file__), options=STRICT, STAGE="1")
    assert run.code == 2, run.said
    assert "not seen, because Muon's updates are in the place of gradients" in run.summary["notes"][0]


@MEGATRON
@pytest.mark.parametrize(
    ("name", "tensors", "steps"),
    [
        ("ties_its_embedding_over_stages", 14, 2),
        pytest.param("keeps_float32_copies", 3, 2, marks=pytest.mark.rare),
        ("clips_nothing_and_takes_the_norm", 3, 1),  # from its second step, as of every script that only takes norms
    ],
)
def test_the_steps_of_megatron_are_observed(tmp_path: Path, name: str, tensors: int, steps: int) -> None:
    run = Run(tmp_path, *ranks(name, script=megatron_scripts.__file__), options=STRICT)
    check_all_is_well(run, tensors, steps)


@MEGATRON
def test_a_wrong_norm_of_megatron_is_a_warning(tmp_path: Path) -> None:
    command = ranks("counts_its_embedding_twice", script=megatron_scripts.__file__)
    run = Run(tmp_path, *command, options=STRICT)
    assert run.code == 1, run.said
    found = run.summary["findings"]["difference"]
    assert found["first"] == 0
    assert run.summary["largest_difference"]["relative"] > 0.1
