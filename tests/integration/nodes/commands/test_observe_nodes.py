"""`gradsync observe` in front of torchrun on each of two nodes, each with a private daemon that knows the other one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from daemon import BINARY
from node_cases import STEPS, inputs_of, model_of
from node_commands import documented, private_daemons, run_on_nodes

SCRIPT = str(Path(__file__).with_name("node_cases.py"))
PATIENT = ("--patience", "60", "--strict")  # whatever else the machine does


class Run:
    """What the commands of two nodes said: summaries by node, and the lines of steps, which rank 0 writes."""

    def __init__(self, folder: Path, case: str, *options: str, **environment: str) -> None:
        self.nodes = run_on_nodes(folder, commands(folder, case, *options), private_daemons(folder, **environment))
        self.said = "\n".join(done.said for done in self.nodes)
        self.summaries = [json.loads((folder / f"{node}.json").read_text()) for node in range(2)]
        self.lines = [json.loads(line) for line in (folder / "0.jsonl").read_text().splitlines()]

    def warnings(self, node: int) -> list[str]:
        return [text for text in self.nodes[node].err.splitlines() if text.startswith("gradsync observe: ")]


def commands(folder: Path, case: str, *options: str) -> list[list[str]]:
    """As docs/observe.md has them, with options that write what the tests read."""
    found = []
    for node, command in enumerate(documented("observe.md", "gradsync observe -- torchrun --nnodes 2")):
        at = command.index("--")
        files = ["--json", str(folder / f"{node}.json"), "--jsonl", str(folder / f"{node}.jsonl")]
        found.append([*command[:at], *files, *(options or PATIENT), *command[at:], SCRIPT, case])
    return found


def one_process_norms() -> list[float]:
    """In float64; both frameworks average the gradients of ranks."""
    model = model_of().double()
    norms = []
    for step in range(STEPS):
        model.zero_grad()
        for rank in range(4):
            (model(inputs_of(step, rank).double()).pow(2).sum() / 4).backward()
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
    return norms


@pytest.mark.training
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", [pytest.param("ddp", marks=pytest.mark.rare), "fsdp2"])
def test_the_second_opinion_is_the_norm_of_one_process(tmp_path: Path, case: str) -> None:
    run = Run(tmp_path, case)
    assert [done.code for done in run.nodes] == [0, 0], run.said
    assert [run.warnings(node) for node in range(2)] == [[], []]
    np.testing.assert_allclose([line["norm"] for line in run.lines], one_process_norms(), rtol=1e-6)
    assert all(abs(line["relative_difference"]) < 1e-6 and line["findings"] == [] for line in run.lines)
    for node, summary in enumerate(run.summaries):
        assert (summary["steps"], summary["skipped"], summary["compared"]) == (STEPS, 0, STEPS)
        assert (summary["ranks"], summary["world_size"]) == (2, 4)
        assert summary["largest_difference"]["rank"] in ((0, 1), (2, 3))[node]


@pytest.mark.training
@pytest.mark.timeout(240)
@pytest.mark.rare
def test_a_shard_that_is_counted_twice_is_said_on_every_node_by_its_ranks(tmp_path: Path) -> None:
    run = Run(tmp_path, "counts_a_shard_twice")
    assert [done.code for done in run.nodes] == [1, 1], run.said
    np.testing.assert_allclose([line["norm"] for line in run.lines], one_process_norms(), rtol=1e-6)
    assert [line["step"] for line in run.lines if line["findings"] == ["difference"]] == list(range(2, STEPS))
    for node, ranks in enumerate(((0, 1), (2, 3))):
        assert run.summaries[node]["findings"]["difference"]["first"] == 2
        for rank in ranks:
            start = f"gradsync observe: rank {rank}: step 2: the framework's norm is "
            assert sum(text.startswith(start) for text in run.warnings(node)) == 1, run.said


@pytest.mark.rare
@pytest.mark.training
@pytest.mark.timeout(240)
def test_a_rank_that_skips_the_clip_is_named_with_its_node(tmp_path: Path) -> None:
    deadlines = {"GRADSYNC_DEADLINES_STEP_MS": "2000", "GRADSYNC_DEADLINES_FIRST_STEP_MS": "20000"}
    run = Run(tmp_path, "rank_three_skips_the_clip", "--patience", "30", **deadlines)
    assert [done.code for done in run.nodes] == [0, 0], run.said
    assert [line["step"] for line in run.lines] == [0, 1]
    for summary in run.summaries:
        missed = [note for note in summary["notes"] if "step 2 has no result" in note]
        assert missed, run.said
        assert all("rank 3" in note and "node1" in note for note in missed), run.said


@pytest.mark.training
def test_a_private_daemon_that_is_not_set_up_for_nodes_says_what_to_set(tmp_path: Path) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "gradsync", "observe", *PATIENT, "--", sys.executable, SCRIPT, "alone"]
    (done,) = run_on_nodes(tmp_path, [command], [{"GRADSYNCD": BINARY, **ranks}])
    assert done.code == 2, done.said  # nothing was observed, and --strict
    assert "has 1 of its 2 ranks on this node" in done.said
    assert "GRADSYNC_PEER_LISTEN and GRADSYNC_PEER_TOKEN_FILE" in done.said


def test_a_private_daemon_whose_token_is_missing_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradsync", "observe", "--", sys.executable, "-c", "print('it ran')"]
    (done,) = run_on_nodes(tmp_path, [command], [{"GRADSYNCD": BINARY, "GRADSYNC_PEER_LISTEN": "127.0.0.2:0"}])
    assert done.code == 2, done.said
    assert "peer.token_file" in done.said
    assert "it ran" not in done.out
