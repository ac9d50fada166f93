"""Unchanged scripts of trainers that clip by themselves, audited and observed; the scripts: trainer_scripts.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import audit_scripts
import pytest
import trainer_scripts
from audits import audit, whole
from forms import some_of
from observed import PATIENT, Run

pytestmark = pytest.mark.long

TRAINERS = {"hf_trainer": "transformers", "accelerate": "accelerate", "lightning_trainer": "lightning"}


def command(name: str, tmp_path: Path) -> list[str]:
    if importlib.util.find_spec(TRAINERS[name]) is None:
        pytest.skip(f"{TRAINERS[name]} is not installed")
    script = [trainer_scripts.__file__, name, str(tmp_path)]
    if name == "lightning_trainer":  # it starts its ranks by itself
        return [sys.executable, *script]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]


@pytest.mark.parametrize("name", TRAINERS)
def test_the_norm_of_an_unchanged_script_agrees(tmp_path: Path, name: str) -> None:
    code, said, found = audit(*command(name, tmp_path), json_file=tmp_path / "verdict.json", HF_HUB_OFFLINE="1")
    assert code == 0, said
    assert (found["steps"], found["ranks"]) == (audit_scripts.STEPS, 2)
    assert [line["verdict"] for line in found["lines"]] == ["agrees", "agrees"]
    assert whole(found)["tensors"] >= 6
    assert not found["problems"]


def test_a_tensor_that_an_unchanged_script_leaves_out_is_named(tmp_path: Path) -> None:
    written = tmp_path / "verdict.json"
    code, said, found = audit(*command("accelerate", tmp_path), json_file=written, WITHOUT="1")
    assert code == 1, said
    (problem,) = found["problems"]
    assert problem.startswith("1 of 6 stepped tensors is never clipped: ")
    assert "0.weight" in problem


@pytest.mark.parametrize("name", some_of(TRAINERS, list(TRAINERS)[:1]))
def test_every_step_of_an_unchanged_script_is_observed(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path, *command(name, tmp_path), options=(*PATIENT, "--strict"), HF_HUB_OFFLINE="1")
    assert run.code == 0, run.said
    assert (run.summary["findings"], run.summary["notes"]) == ({}, []), run.said
    assert run.summary["compared"] == len(run.lines) == trainer_scripts.STEPS
    assert all(abs(line["relative_difference"]) < 1e-6 for line in run.lines)
