"""`gradsync audit` on DeepSpeed, whose optimizers learn the norm inside `step()`; the scripts: deepspeed_scripts.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import deepspeed_scripts
import pytest
import torch
from audits import audit, ranks_of, whole

SCRIPT = deepspeed_scripts.__file__

# DeepSpeed refuses fp16 on CPUs whose mkldnn has no arithmetic for it.
FP16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_fp16_supported(), reason="DeepSpeed has no fp16 on a CPU without fp16 arithmetic"
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


@pytest.mark.parametrize(
    ("stage", "dtype", "group"),
    [
        pytest.param("0", "float32", "copied to all ranks", marks=pytest.mark.rare),
        ("0", "bfloat16", "copied to all ranks"),
        pytest.param("0", "float16", "copied to all ranks", marks=[FP16, pytest.mark.rare]),
        pytest.param("1", "float32", "over dp", marks=pytest.mark.rare),
        pytest.param(
            "1", "bfloat16", "copied to all ranks", marks=pytest.mark.rare
        ),  # the optimizer for bfloat16, with whole gradients in float32
        pytest.param("2", "float16", "over dp", marks=FP16),
        ("2", "bfloat16", "over dp"),
        ("3", "float32", "over dp"),
    ],
)
def test_the_norm_of_each_optimizer_agrees(tmp_path: Path, stage: str, dtype: str, group: str) -> None:
    code, said, found = audit(
        *ranks_of(2, "trains", SCRIPT), json_file=tmp_path / "verdict.json", STAGE=stage, DTYPE=dtype
    )
    assert code == 0, said
    assert [(line["name"], line["verdict"], line["tensors"]) for line in found["lines"]] == [
        ("whole model", "agrees", 6),
        (group, "agrees", 6),
    ]
    assert found["steps"] == deepspeed_scripts.STEPS
    assert not found["problems"]
    assert not found["findings"]
    assert whole(found)["ours"] > 0.01


def test_the_norm_of_the_unfused_optimizer_is_divided_by_the_loss_scale(tmp_path: Path) -> None:
    command = ranks_of(2, "steps_by_the_unfused_optimizer", SCRIPT)
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert [(line["name"], line["verdict"], line["tensors"]) for line in found["lines"]] == [
        ("whole model", "agrees", 6),
        ("copied to all ranks", "agrees", 6),
    ]
    assert 0.01 < whole(found)["ours"] < 100  # with the scale it would be 256 times that
    assert not found["problems"]


def test_a_run_by_torchrun_is_seen(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, said, found = audit(*torchrun, SCRIPT, "trains", json_file=tmp_path / "verdict.json", STAGE="2")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"


def test_a_clip_by_torch_of_what_zero_keeps_elsewhere_is_named(tmp_path: Path) -> None:
    command = ranks_of(2, "clips_by_torch_what_zero_keeps_elsewhere", SCRIPT)
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json", STAGE="2")
    assert code == 1, said
    (problem,) = found["problems"]
    assert problem.startswith(
        "nothing is clipped: no clip call of any rank is given a gradient, and 6 tensors with one"
    )
    assert "set gradient_clipping in its configuration" in problem


def test_what_cannot_be_seen_is_said_with_the_version() -> None:
    code, said, _ = audit(*ranks_of(2, "takes_muon_for_adam", SCRIPT), STAGE="1")
    assert code == 2, said
    assert "NotSeen: DeepSpeed " in said
    assert "not seen, because Muon's updates are in the place of gradients" in said


def test_internals_that_are_not_as_expected_are_said_and_the_script_runs_on() -> None:
    code, said, _ = audit(*ranks_of(2, "is_another_version", SCRIPT), STAGE="1")
    assert code == 2, said
    assert (
        "not seen, because its DeepSpeedZeroOptimizer is not as in the versions that are known: AttributeError" in said
    )
    assert said.count("all steps are made") == 2
