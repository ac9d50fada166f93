"""The two commands of docs/operate/operations-nodes.md with `gst.attach`, and `make demo-nodes` in short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from daemon import BINARY
from node_commands import documented, run_on_nodes
from node_jobs import Nodes
from sync_script import STEPS, loss_of, model_of

ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).with_name("sync_script.py")
WORLD = 4


def one_device_norms(kind: str) -> list[float]:
    """What a single process computes in float64, from the mean over ranks."""
    model = model_of().double()
    norms = []
    for step in range(STEPS):
        model.zero_grad()
        for rank in range(WORLD):
            (loss_of(model, step, rank, kind, torch.float64) / WORLD).backward()
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
    return norms


@pytest.mark.training
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["plain", pytest.param("hsdp", marks=pytest.mark.rare)])
def test_two_commands_reduce_over_two_nodes(tmp_path: Path, kind: str) -> None:
    with Nodes(tmp_path, 2) as nodes:
        commands = [
            [*start, str(SCRIPT), kind] for start in documented("operate/operations-nodes.md", "torchrun --nnodes 2")
        ]
        environments = [
            {"GRADSYNC_ADDRESS": nodes.address(node), "GRADSYNC_COORDINATOR": nodes.coordinator} for node in range(2)
        ]
        found: list[dict[str, Any]] = []
        for done in run_on_nodes(tmp_path, commands, environments):
            assert done.code == 0, done.err[-4000:]
            found += [json.loads(line) for line in done.out.splitlines()]
    assert sorted((rank["rank"], rank["node"]) for rank in found) == [(0, "0"), (1, "0"), (2, "1"), (3, "1")]
    assert len({tuple(rank["norms"]) for rank in found}) == 1, "the norm has equal bits on all ranks"
    replicas = {rank["rank"] % 2 if kind == "hsdp" else 0: set() for rank in found}
    for rank in found:
        replicas[rank["rank"] % 2 if kind == "hsdp" else 0].add(rank["gradients"])
    assert {len(gradients) for gradients in replicas.values()} == {1}, "and so have the gradients of replicas"
    np.testing.assert_allclose(found[0]["norms"], one_device_norms(kind), rtol=1e-6)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_daemons_train_as_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "clients/python/examples/demo_nodes.py"),
            "--steps=10",
            f"--gradsyncd={BINARY}",
            f"--out={tmp_path / 'out'}",
        ],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["ranks_bit_equal"] == {"2 x 2": True, "1 x 4": True}
    assert report["steps"] == 10
    assert report["max_rel_loss_diff"] <= report["tolerance"] == 1e-5
