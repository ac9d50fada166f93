"""Trainers with gradsync.integrations beside the same trainers alone, on two ranks; scripts: integrated_scripts.py."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import integrated_scripts
import pytest
from daemon import BINARY, clean_environment
from forms import some_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.long

CASES = (
    "in_accelerate",
    "in_accelerate_accumulating",
    "in_accelerate_sharded",
    "in_transformers",
    "in_transformers_unclipped",
    "in_lightning",
    "in_lightning_sharded",
    "in_lightning_split",
    "in_lightning_synced",
    "in_lightning_synced_accumulating",
    "in_lightning_unclipped",
    "in_torchtitan_stages",
    "in_torchtitan_experts",  # FSDP2 as well
)
CHOSEN = ("in_accelerate", "in_transformers", "in_lightning_synced")
DEADLINE_S = 300.0


def train(case: str, folder: Path, *own: str, **environment: str) -> tuple[int, str]:
    framework = case.split("_")[-1] if case.startswith(("refused", "unprepared")) else case.split("_")[1]
    if importlib.util.find_spec("torchdata" if framework == "torchtitan" else framework) is None:
        pytest.skip(f"{framework} is not installed")
    folder.mkdir(exist_ok=True)
    command = [integrated_scripts.__file__, case, str(folder), *own]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [BINARY, "run", "--", sys.executable, *([] if framework == "lightning" else launcher), *command],
        env=clean_environment(GRADSYNCD=BINARY, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def left_by(case: str, folder: Path, *own: str, **environment: str) -> list[Any]:
    code, said = train(case, folder, *own, **environment)
    assert code == 0, said
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def distance(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference of two models' weights, relative to the largest weight."""
    assert first.keys() == second.keys()
    largest = max(float(weight.abs().max()) for weight in first.values())
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first) / largest


@pytest.mark.timeout(2 * DEADLINE_S + 20)
@pytest.mark.parametrize("case", some_of(CASES, CHOSEN))
def test_training_is_what_it_is_without_to_the_last_digits(case: str, tmp_path: Path) -> None:
    here = left_by(case, tmp_path / "with")
    alone = left_by(case, tmp_path / "alone", "own")
    assert distance(here[0]["weights"], here[1]["weights"]) == 0, "the ranks are equal"
    assert distance(here[0]["weights"], alone[0]["weights"]) < 1e-6
    norms, expected = here[0]["norms"], alone[0]["norms"]
    assert len(norms) >= integrated_scripts.STEPS
    assert norms == here[1]["norms"] or not here[1]["norms"], "a Trainer logs on rank 0"
    assert all(math.isfinite(norm) and norm > 0 for norm in norms)
    assert len(expected) in (0, len(norms)), "Lightning says no norm of its own"
    assert all(math.isclose(ours, theirs, rel_tol=1e-6) for ours, theirs in zip(norms, expected, strict=False))


@pytest.mark.timeout(DEADLINE_S + 20)
@pytest.mark.parametrize("case", some_of(["in_accelerate", "in_lightning"], ["in_accelerate"]))
def test_in_mode_observe_no_bit_of_the_run_changes(case: str, tmp_path: Path) -> None:
    here = left_by(case, tmp_path / "with", GRADSYNC_MODE="observe")
    alone = left_by(case, tmp_path / "alone", "own")
    assert distance(here[0]["weights"], alone[0]["weights"]) == 0


@pytest.mark.timeout(DEADLINE_S + 20)
def test_what_lightning_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    code, said = train("refused_in_lightning", tmp_path)
    assert code == 0, said
    refused = [line for line in said.splitlines() if line.startswith("refused:")]
    assert [line.split(":")[1].strip() for line in refused] == [
        "GradsyncCallback with manual optimization",
        "GradsyncStrategy with manual optimization",
        "GradsyncCallback with gradient_clip_algorithm='value'",
        "GradsyncStrategy with LBFGS",
    ]


@pytest.mark.timeout(DEADLINE_S + 20)
def test_what_torchtitan_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    code, said = train("refused_in_torchtitan", tmp_path)
    assert code == 0, said
    refused = [line for line in said.splitlines() if line.startswith("refused:")]
    assert len(refused) == 4  # two on each rank
    assert {line.split(":")[1].strip() for line in refused} == {
        "torchtitan.init(Sequential)",
        "torchtitan.init() with TorchFT",
    }


@pytest.mark.timeout(DEADLINE_S + 20)
def test_accelerate_is_prepared_first(tmp_path: Path) -> None:
    code, said = train("unprepared_accelerate", tmp_path)
    assert code == 0, said
    assert "before accelerator.prepare(model)" in said
