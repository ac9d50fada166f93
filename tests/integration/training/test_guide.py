"""The scripts of docs/guide.md, as they stand there: each trains with gradsync, and is audited."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import BINARY, clean_environment
from forms import some_of

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guide.md").read_text()
SCRIPTS = {
    name: text
    for text, name in re.findall(r"^```python\n(# (train_\w+)\.py\n.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
}
MESSAGES = re.findall(r"^\| (`.*?) \|", GUIDE.split("\n## A message, and what to do\n")[1], re.MULTILINE)
NEEDS = {
    "train_accelerate": "accelerate",
    "train_deepspeed": "deepspeed",
    "train_hf": "transformers",
    "train_lightning": "lightning",
    "train_lightning_sync": "lightning",
    "train_megatron": "megatron",
    "train_torchtitan": "torchtitan",
}
SYNCED = {"train_sync", "train_lightning_sync"}  # there gradsync reduces, and nothing of torch clips
AUDITED = sorted(set(SCRIPTS) - SYNCED)
DEADLINE_S = 400.0  # DeepSpeed compiles an operator when it first runs


def started(name: str, tmp_path: Path) -> list[str]:
    """The command of a script of the guide; skips the test without its framework."""
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPTS[name])
    if name.startswith("train_lightning"):  # it starts its ranks by itself
        return [sys.executable, str(script)]
    ranks = "8" if name == "train_hsdp_tp" else "2"
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, str(script)]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(GRADSYNCD=BINARY, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide_has_scripts_and_messages() -> None:
    assert {"train_ddp", "train_sync", "train_fsdp2", "train_hsdp_tp", *NEEDS} <= set(SCRIPTS)
    assert len(MESSAGES) > 10


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 20)
@pytest.mark.rare
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_of_the_guide_trains(name: str, tmp_path: Path) -> None:
    said = run([BINARY, "run", "--", *started(name, tmp_path)], tmp_path)
    if name == "train_lightning_sync":
        assert "rank 0: step 5, norm " in said
        assert "rank 1: step 5, norm " in said


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 20)
@pytest.mark.parametrize("name", some_of(AUDITED, ["train_ddp", "train_fsdp2", "train_lightning"]))
def test_a_script_of_the_guide_is_audited_and_agrees(name: str, tmp_path: Path) -> None:
    command = started(name, tmp_path)
    written = tmp_path / "audit.json"
    run([sys.executable, "-m", "gradsync", "audit", "--json", str(written), "--", *command], tmp_path)
    found = json.loads(written.read_text())
    assert found["lines"][0]["name"] == "whole model"
    assert found["lines"][0]["verdict"] == "agrees"


def test_the_script_of_the_clients_readme_runs(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "clients/python/README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    script = tmp_path / "raw.py"
    script.write_text(text)
    said = run([BINARY, "run", "--", sys.executable, str(script)], tmp_path)
    assert "512.0 True" in said  # the norm of 512 · 512 ones, which is clipped


@pytest.mark.parametrize("cell", MESSAGES)
def test_every_message_of_the_guide_is_one_that_gradsync_says(cell: str) -> None:
    sources = [*(ROOT / "service").rglob("*.cpp"), *(ROOT / "clients/python/src").rglob("*.py")]
    texts = [source.read_text() for source in sources]
    words = re.findall(r"`(.*?)`", cell)
    assert words
    assert not [said for said in words if not any(said in text for text in texts)]
