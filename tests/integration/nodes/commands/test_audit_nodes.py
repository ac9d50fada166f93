"""`gradsync audit` in front of torchrun on each of two nodes; the ranks of both write into one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY
from node_commands import Done, documented, run_on_nodes

SCRIPT = str(Path(__file__).with_name("node_cases.py"))


class Run:
    """The verdicts of the commands of two nodes, each with a private daemon."""

    def __init__(self, folder: Path, case: str, *options: str) -> None:
        environments = [{"GRADSYNCD": BINARY, "GRADSYNC_PEER_NODE": f"node{node}"} for node in range(2)]
        self.nodes: list[Done] = run_on_nodes(folder, commands(folder, case, *options), environments)
        self.said = "\n".join(done.said for done in self.nodes)
        self.codes = [done.code for done in self.nodes]
        self.verdicts: list[dict[str, Any]] = [json.loads((folder / f"{node}.json").read_text()) for node in range(2)]


def commands(folder: Path, case: str, *options: str) -> list[list[str]]:
    """As docs/audit.md has them, with options that write what the tests read."""
    shared = {"/shared/audit-1": str(folder / "shared")}
    found = []
    for node, command in enumerate(documented("audit.md", "gradsync audit --folder /shared/audit-1", **shared)):
        at = command.index("--")
        extra = ["--steps", "4", "--json", str(folder / f"{node}.json"), *options]
        found.append([*command[:at], *extra, *command[at:], SCRIPT, case])
    return found


def check_whole(verdict: dict[str, Any], word: str) -> dict[str, Any]:
    line: dict[str, Any] = verdict["lines"][0]
    assert (line["name"], line["verdict"]) == ("whole model", word), verdict
    assert (verdict["ranks"], verdict["steps"], verdict["node"]) == (4, 4, "")
    assert "node node0 has ranks 0, 1; node node1 has ranks 2, 3" in verdict["findings"]
    return line


@pytest.mark.training
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", [pytest.param("ddp", marks=pytest.mark.rare), "fsdp2"])
def test_a_right_norm_agrees_on_both_nodes(tmp_path: Path, case: str) -> None:
    run = Run(tmp_path, case)
    assert run.codes == [0, 0], run.said
    for verdict in run.verdicts:
        line = check_whole(verdict, "agrees")
        assert abs(line["difference"]) < 1e-6


@pytest.mark.training
@pytest.mark.timeout(240)
@pytest.mark.rare
def test_a_sum_that_is_made_twice_over_the_nodes_is_named_on_both(tmp_path: Path) -> None:
    run = Run(tmp_path, "sums_shards_twice", "--stop")
    assert run.codes == [1, 1], run.said
    for verdict in run.verdicts:
        line = check_whole(verdict, "differs")
        assert line["difference"] == pytest.approx(1.0, rel=1e-4)
        assert [(cause["kind"], cause["axis"]) for cause in line["causes"]] == [("summed_twice", "dp_shard")]


@pytest.mark.training
@pytest.mark.timeout(240)
def test_a_shard_that_is_counted_twice_differs_on_both_nodes(tmp_path: Path) -> None:
    run = Run(tmp_path, "counts_a_shard_twice")
    assert run.codes == [1, 1], run.said
    for verdict in run.verdicts:
        line = check_whole(verdict, "differs")
        assert line["step"] >= 2
        assert line["causes"][0]["kind"] == "unknown"


@pytest.mark.rare
@pytest.mark.training
@pytest.mark.timeout(240)
def test_a_rank_that_never_clips_is_named_with_its_node(tmp_path: Path) -> None:
    run = Run(tmp_path, "rank_three_never_clips")
    assert run.codes == [2, 2], run.said
    for verdict in run.verdicts:
        assert verdict["reason"] == "ranks 3 (node node1) of 4 never called a clip function of torch"


def test_a_folder_of_an_earlier_run_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/rank-0.jsonl").touch()
    for done in run_on_nodes(tmp_path, commands(tmp_path, "ddp"), [{"GRADSYNCD": BINARY}] * 2):
        assert done.code == 2
        assert "it has the files of an earlier run; name a folder that is new or empty" in done.said
