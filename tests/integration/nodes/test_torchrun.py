"""The two commands of docs/operations-nodes.md, each with a daemon of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from daemon import DEADLINE_S, clean_environment
from node_jobs import Nodes, free_port
from node_script import STEPS, inputs_of, model_of

SCRIPT = Path(__file__).with_name("node_script.py")
DOCUMENT = Path(__file__).parents[3] / "docs/operations-nodes.md"


def commands(kind: str, port: int) -> list[list[str]]:
    """As the document has them."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("torchrun --nnodes 2")]
    assert len(lines) == 2
    filled = [line.replace("NODE0", "127.0.0.2").replace("29500", str(port)).split() for line in lines]
    return [[sys.executable, "-m", "torch.distributed.run", *words[1:-1], str(SCRIPT), kind] for words in filled]


def one_device_norms(world_size: int) -> list[float]:
    """What a single process computes in float64: both frameworks average the gradients of ranks."""
    model = model_of(0).double()
    norms = []
    for step in range(STEPS):
        model.zero_grad()
        for rank in range(world_size):
            (model(inputs_of(step, rank).double()).pow(2).sum() / world_size).backward()
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
    return norms


@pytest.mark.training
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_commands_train_over_two_nodes(tmp_path: Path, kind: str) -> None:
    with Nodes(tmp_path, 2) as nodes:
        found: list[dict[str, Any]] = []
        started = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=(tmp_path / f"{node}.err").open("wb"),
                env=clean_environment(
                    GRADSYNC_ADDRESS=nodes.address(node), GRADSYNC_COORDINATOR=nodes.coordinator, OMP_NUM_THREADS="1"
                ),
            )
            for node, command in enumerate(commands(kind, free_port()))
        ]
        try:
            for node, process in enumerate(started):
                out, _ = process.communicate(timeout=2 * DEADLINE_S)
                assert process.returncode == 0, (tmp_path / f"{node}.err").read_text()[-4000:]
                found += [json.loads(line) for line in out.splitlines()]
        finally:
            for process in started:
                process.kill()
                process.wait(DEADLINE_S)
    assert sorted((rank["rank"], rank["node"]) for rank in found) == [(0, "0"), (1, "0"), (2, "1"), (3, "1")]
    assert len({tuple(rank["norms"]) for rank in found}) == 1, "the norm has equal bits on all ranks"
    np.testing.assert_allclose(found[0]["norms"], one_device_norms(4), rtol=1e-6)
