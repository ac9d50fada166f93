"""The two commands of docs/operate/operations-nodes.md with two daemons, against the same ranks at one daemon."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from daemon import Daemon
from node_commands import documented, run_on_nodes
from node_jobs import Nodes
from node_script import STEPS, inputs_of, model_of

SCRIPT = Path(__file__).with_name("node_script.py")


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


def ranks_of(folder: Path, commands: list[list[str]], environments: list[dict[str, str]]) -> list[dict[str, Any]]:
    """What each rank printed, in the order of ranks."""
    found = []
    for done in run_on_nodes(folder, commands, environments):
        assert done.code == 0, done.err[-4000:]
        found += [json.loads(line) for line in done.out.splitlines()]
    return sorted(found, key=lambda rank: int(rank["rank"]))


def over_two_daemons(folder: Path, kind: str) -> list[dict[str, Any]]:
    with Nodes(folder, 2) as nodes:
        starts = documented("operate/operations-nodes.md", "torchrun --nnodes 2")
        commands = [[*command, str(SCRIPT), kind] for command in starts]
        environments = [
            {"GRADSYNC_ADDRESS": nodes.address(node), "GRADSYNC_COORDINATOR": nodes.coordinator} for node in range(2)
        ]
        return ranks_of(folder, commands, environments)


def at_one_daemon(folder: Path, kind: str) -> list[dict[str, Any]]:
    with Daemon(folder=str(folder)) as daemon:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        return ranks_of(folder, [[*torchrun, str(SCRIPT), kind]], [{"GRADSYNC_ADDRESS": daemon.socket}])


@pytest.mark.training
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [pytest.param("ddp", marks=pytest.mark.rare), "fsdp2"])
def test_two_commands_train_over_two_nodes_as_four_ranks_at_one_daemon_do(tmp_path: Path, kind: str) -> None:
    found = over_two_daemons(tmp_path, kind)
    assert [(rank["rank"], rank["node"]) for rank in found] == [(0, "0"), (1, "0"), (2, "1"), (3, "1")]
    assert len({tuple(rank["norms"]) for rank in found}) == 1, "the norm has equal bits on all ranks"
    assert len({tuple(rank["coefficients"]) for rank in found}) == 1, "and so has the coefficient"
    assert all(float.fromhex(one) < 1 for one in found[0]["coefficients"]), "every step clips"
    np.testing.assert_allclose(found[0]["norms"], one_device_norms(4), rtol=1e-6)

    alone = at_one_daemon(tmp_path, kind)
    assert [rank["gradients"] for rank in alone] == [rank["gradients"] for rank in found]
    norms, theirs = (np.array(ranks[0]["norms"], np.float32) for ranks in (alone, found))
    np.testing.assert_array_max_ulp(norms, theirs, maxulp=1)
