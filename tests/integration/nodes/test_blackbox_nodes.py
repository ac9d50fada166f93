"""Dumps of the flight recorders of several daemons, put together: the late rank and the lost node are named."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S, call, run_command
from link_proxy import Proxy
from node_jobs import NodeRank, Nodes, Route, job_over
from ranks_in_threads import on_all, whole
from sync_jobs import MediumRank, sync_again

from gradsync.errors import NodeLost, StepTimeout

SHORT = ("--deadlines-step-ms", "2000", "--deadlines-first-step-ms", "60000")


def dumps_in(folder: Path, of_nodes: int) -> list[str]:
    """One of each node; daemons keep their dumps beside their sockets."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = {dump.parent: str(dump) for dump in sorted(folder.glob("node*/gradsync.blackbox/*.jsonl"))}
        if len(found) == of_nodes:
            return list(found.values())
        assert time.monotonic() < end, f"dumps of {len(found)} nodes, {of_nodes} are wanted"
        time.sleep(0.01)


def analyzed(dumps: list[str]) -> dict[str, Any]:
    said = run_command("blackbox", "analyze", "--json", *dumps)
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("late", [1, 2])
def test_the_rank_that_a_step_over_nodes_waited_for_is_named(tmp_path: Path, late: int) -> None:
    with Nodes(tmp_path, 2, *SHORT) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        for step in range(3):
            whole(on_all(ranks, lambda rank, step=step: rank.step(step)))
        others = [rank for rank in ranks if rank.rank != late]
        assert all(isinstance(error, StepTimeout) for error in on_all(others, lambda rank: rank.step(3)))
        found = analyzed(dumps_in(tmp_path, 2))
        assert (found["finding"], found["rank"], found["node"]) == ("late_rank", late, f"node{late // 2}")
        assert found["sentence"].startswith(f"Rank {late} on node node{late // 2} held up step 3 (epoch ")
        assert found["absent"] == []


def test_a_rank_that_is_late_in_every_step_over_nodes_is_named(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))

        def step(rank: NodeRank, number: int) -> None:
            time.sleep(0.06 if rank.rank == 4 else 0.0)
            rank.step(number)

        for number in range(20):
            whole(on_all(ranks, lambda rank, number=number: step(rank, number)))
        for daemon in nodes.daemons:
            assert len(call(daemon.unix(), "blackbox.dump")["result"]["dumps"]) == 1  # type: ignore[index]
        dumps = dumps_in(tmp_path, 3)
        found = analyzed(dumps)
        assert (found["finding"], found["rank"], found["node"]) == ("late_rank", 4, "node2")
        assert [row["state"] for row in found["attempts"]] == ["done"] * 30
        trace = json.loads(run_command("blackbox", "trace", *dumps).stdout)
        steps = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"] == "step 10"]
        assert sorted(event["pid"] for event in steps) == [1, 2, 3]
        ends = [event["ts"] + event["dur"] for event in steps]
        assert max(ends) - min(ends) < 50_000  # clocks are brought together


@pytest.mark.training
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_slow_link_between_two_of_three_nodes_is_named(tmp_path: Path) -> None:
    """Gradients between nodes 0 and 2 come late both ways; those of node 1 do not."""
    with Nodes(tmp_path, 3) as nodes, Proxy(nodes.coordinator) as proxy:
        route = Route.over(nodes, {2: proxy.address})
        with job_over(nodes, 1, route=route, kind=MediumRank) as ranks:
            whole(on_all(ranks, MediumRank.declare))
            sync_again(ranks, 0)
            assert proxy.data_links() == 2
            proxy.data_delay_s = 0.15
            for step in range(1, 11):
                sync_again(ranks, step)
            answers: list[Any] = [call(daemon.unix(), "blackbox.dump")["result"] for daemon in nodes.daemons]
        found = analyzed([dump["file"] for answer in answers for dump in answer["dumps"]])
        assert found["finding"] == "slow_link", found
        assert {found["node"], found["peer"]} == {"node0", "node2"}, found
        assert found["sentence"].startswith(f"The link from node {found['node']} to node {found['peer']} is slow: ")


def test_a_node_that_was_lost_is_named_by_the_others(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *SHORT) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        whole(on_all(ranks, lambda rank: rank.step(0)))

        def step_or_kill(rank: NodeRank) -> Any:
            if rank.node == 0:
                return rank.step(1)
            if rank.rank == 2:
                time.sleep(0.5)  # the others wait by then
                nodes.kill(1)
            return None

        results = on_all(ranks, step_or_kill)
        assert all(isinstance(error, NodeLost) for error in results[:2]), results
        found = analyzed(dumps_in(tmp_path, 1))
        assert found["finding"] == "missing_node"
        assert "node1" in found["sentence"]
        assert found["absent"] == ["1 (ranks 2, 3)"]
