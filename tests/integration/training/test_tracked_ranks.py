"""Trackers on two real ranks: rank 0 logs what the ranks found, and rank 1 nothing. The scripts of docs/trackers.md."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY, clean_environment

ROOT = Path(__file__).parents[3]
DEADLINE_S = 115.0  # mlflow and wandb are large
SCRIPTS = {
    name: text
    for text, name in re.findall(
        r"^```python\n(# (train_\w+)\.py\n.*?)^```$",
        (ROOT / "docs/trackers.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
}
NEEDS = {"train_mlflow": "mlflow", "train_tensorboard": "tensorboard", "train_wandb": "wandb"}


def run(folder: Path, *script: str, **extra: str) -> str:
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    done = subprocess.run(
        [BINARY, "run", "--", *ranks],
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="1", **extra),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def logged(folder: Path, how: str) -> list[dict[str, Any]]:
    """The lines of rank 0; rank 1 must have none."""
    run(folder, str(Path(__file__).with_name("tracked_scripts.py")), how, str(folder))
    assert [path.name for path in folder.glob("*.jsonl")] == ["run.0.jsonl"]
    return [json.loads(line) for line in (folder / "run.0.jsonl").read_text().splitlines()]


@pytest.mark.training
def test_rank_0_logs_what_the_sidecar_reduced_and_rank_1_nothing(tmp_path: Path) -> None:
    lines = logged(tmp_path, "attach")
    assert [line["step"] for line in lines] == list(range(12))
    for line in lines:
        if line["step"] == 5:
            continue
        assert line["grad_clipped"] == float(line["grad_norm"] > 2.0)
        assert line["grad_norm_group/all"] == line["grad_norm"]
        assert line["grad_clip_threshold"] == line["grad_clip_threshold_group/all"] == 2.0
        layers = line["grad_norm_layer/weight"] ** 2 + line["grad_norm_layer/bias"] ** 2
        assert layers == pytest.approx(line["grad_norm"] ** 2, rel=1e-5)
    assert {line["grad_clipped"] for line in lines} == {0.0, 1.0}
    broken = lines[5]
    assert broken["grad_norm"] == "NaN"
    assert broken["findings"] == ["nonfinite"]
    assert "'weight' of rank 1" in broken["says"][0]
    assert "rank 0" not in broken["says"][0]


@pytest.mark.training
def test_a_clip_of_the_framework_is_logged_with_the_numbers_of_a_resumed_run(tmp_path: Path) -> None:
    lines = logged(tmp_path, "clip")
    assert [line["step"] for line in lines] == list(range(100, 112, 2))
    assert all(line["grad_clip_threshold"] == 2.0 for line in lines)


@pytest.mark.training
def test_observing_logs_the_frameworks_norm_and_the_difference(tmp_path: Path) -> None:
    lines = logged(tmp_path, "observe")
    assert [line["step"] for line in lines] == list(range(100, 112, 2))
    for line in lines:
        assert line["grad_norm_framework"] == pytest.approx(line["grad_norm"], rel=1e-5)
        assert abs(line["grad_norm_difference"]) < 1e-5
        assert [one["policy"].split()[0] for one in line["watch"]] == ["percentile"]


def test_the_document_has_a_script_for_each_tracker() -> None:
    assert set(SCRIPTS) == {*NEEDS, "train_lines"}


@pytest.mark.training
@pytest.mark.parametrize(
    "name", [name if "mlflow" in name else pytest.param(name, marks=pytest.mark.rare) for name in sorted(SCRIPTS)]
)
def test_a_script_of_the_document_trains_and_its_tracker_has_the_curve(name: str, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPTS[name])
    said = run(tmp_path, str(script), WANDB_MODE="offline", MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/runs.db")
    assert "gradsync-tracker" not in said
    READ[name](tmp_path)


def read_mlflow(folder: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/runs.db")
    (one,) = client.search_runs(["0"])
    assert [metric.step for metric in client.get_metric_history(one.info.run_id, "grad_norm")] == [0, 50, 100]


def read_tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "runs/a"))
    events.Reload()
    assert [one.step for one in events.Scalars("grad_norm")] == [0, 50, 100]


def read_wandb(folder: Path) -> None:
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert path.read_bytes().count(b"gradsync_step") >= 3


def read_lines(folder: Path) -> None:
    steps = [json.loads(line)["step"] for line in (folder / "run.jsonl").read_text().splitlines()]
    assert steps == list(range(120))


READ = {
    "train_mlflow": read_mlflow,
    "train_tensorboard": read_tensorboard,
    "train_wandb": read_wandb,
    "train_lines": read_lines,
}
