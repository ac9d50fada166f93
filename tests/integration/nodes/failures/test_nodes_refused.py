"""Nodes that do not fit together: a rank that two of them have, plans that differ, and a restart with another world."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES
from node_faults import NODE_S, PROCESS_S, Asking, Baseline, check_step, soon, step_again, wait_for
from node_jobs import NodeRank, Nodes, Route, close_all, job_over
from ranks_in_threads import on_all, whole

from gradsync import Replicate, Tensor
from gradsync.errors import JobMismatch, PlanMismatch, RankInUse, Superseded

TURNS = [1, pytest.param(TIMES, marks=pytest.mark.long)]


def reason_of(rank: NodeRank) -> str:
    """What its daemon says of the job."""
    return str(next(job["reason"] for job in rank.client.status()["jobs"] if job["job"] == rank.name))


def waits_in_declare(rank: NodeRank) -> bool:
    jobs = [job for job in rank.client.status()["jobs"] if job["job"] == rank.name]
    return any(each["rank"] == rank.rank and each["waiting_in"] == "gradients.declare" for each in jobs[0]["ranks"])


@pytest.mark.parametrize("times", TURNS)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_rank_that_a_node_of_a_whole_job_has_is_refused_to_another(tmp_path: Path, times: int) -> None:
    """With it the nodes have more ranks than the job, and the job goes on."""
    with Nodes(tmp_path, 3) as nodes:
        baseline = Baseline(nodes, 2)
        two = Route(Route.over(nodes).addresses[:2], nodes.coordinator)
        third = Route((nodes.address(0), nodes.address(2)), nodes.coordinator)  # which says that it is node 1
        with job_over(nodes, 4, route=two) as ranks:
            whole(on_all(ranks, NodeRank.declare))
            for turn in range(times):
                step_again(ranks, 2 * turn)
                again = whole(on_all(range(4, 8), lambda rank: NodeRank(third, "job", rank, 4, 8)))
                began = time.monotonic()
                for error in on_all(again, NodeRank.declare):
                    assert type(error) is JobMismatch, error
                    assert error.node == "node2", error
                    assert "the nodes have 12 ranks, and world_size is 8" in str(error)
                assert time.monotonic() - began < PROCESS_S
                close_all(again)
                check_step(ranks, 2 * turn + 1, whole(on_all(ranks, lambda rank, step=2 * turn + 1: rank.step(step))))
        baseline.check()


@pytest.mark.parametrize("times", TURNS)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_rank_that_two_nodes_claim_is_refused_to_the_second_with_both_addresses(tmp_path: Path, times: int) -> None:
    with Nodes(tmp_path, 3) as nodes:
        baseline = Baseline(nodes, 3)
        route = Route.over(nodes)
        for turn in range(times):
            name = f"job{turn}"
            first = whole(on_all(range(6), lambda rank, name=name: NodeRank(route, name, rank, 3, 9)))
            declaring = soon(first, NodeRank.declare)
            wait_for(lambda rank=first[0]: "6 of 9 ranks have joined" in reason_of(rank), "node 1 does not join")
            # Ranks 5 to 7 instead of 6 to 8: an offset that somebody got wrong.
            wrong = whole(on_all((5, 6, 7), lambda rank, name=name: NodeRank(route, name, rank, 3, 9, node=2)))
            began = time.monotonic()
            for error in on_all(wrong, NodeRank.declare):
                assert type(error) is RankInUse, error
                assert error.node == "node1", error
                assert "node 'node1' (127.0.0.1) holds a rank that node 'node2' (127.0.0.1) claims" in str(error)
            assert time.monotonic() - began < NODE_S
            close_all(wrong)
            right = whole(on_all(range(6, 9), lambda rank, name=name: NodeRank(route, name, rank, 3, 9)))
            whole(on_all(right, NodeRank.declare))
            whole(declaring.result(DEADLINE_S))
            step_again([*first, *right], 0)
            close_all([*first, *right])
        baseline.check()


def check_plans_differ(ranks: list[NodeRank], odd_node: int) -> None:
    """The ranks of that node declare a tensor of another shape, after one plan of all was in use or refused."""

    def declare(rank: NodeRank) -> None:
        copied = Tensor("copied", (9 if rank.node == odd_node else 8,), placements={"dp": Replicate()})
        rank.job.declare([copied], data_path="stats")

    began = time.monotonic()
    errors = on_all(ranks, declare)
    assert time.monotonic() - began < PROCESS_S
    for error in errors:
        assert type(error) is PlanMismatch, error
        assert error.tensor == "copied", error
        assert "[8]" in str(error), error
        assert "[9]" in str(error), error


@pytest.mark.parametrize("times", TURNS)
@pytest.mark.parametrize(("count", "per_node"), [(2, 4), (4, 2)])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_plans_that_differ_are_refused_on_all_ranks_with_the_tensor(
    tmp_path: Path, count: int, per_node: int, times: int
) -> None:
    with Nodes(tmp_path, count) as nodes:
        baseline = Baseline(nodes, per_node)
        with job_over(nodes, per_node) as ranks:
            for turn in range(times):
                check_plans_differ(ranks, count - 1)
                whole(on_all(ranks, NodeRank.declare))
                step_again(ranks, turn)
        baseline.check()


@pytest.mark.parametrize("times", TURNS)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_all_ranks_declare_another_plan_one_node_after_the_other(tmp_path: Path, times: int) -> None:
    """No plan is made of what one node declares now and another has declared before."""
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        for turn in range(times):
            step_again(ranks, turn)
            first = [rank for rank in ranks if rank.node == turn % 2]

            def declare(rank: NodeRank, numel: int = 10 + turn) -> None:
                rank.job.declare([Tensor("other", (numel,), placements={"dp": Replicate()})], data_path="stats")

            declaring = soon(first, declare)
            for rank in first:
                wait_for(lambda rank=rank: waits_in_declare(rank), "it does not wait for the other node")
            whole(on_all([rank for rank in ranks if rank not in first], declare))
            whole(declaring.result(DEADLINE_S))
            whole(on_all(ranks, NodeRank.declare))


@pytest.mark.parametrize("first", ["node 0", "node 1"])
@pytest.mark.parametrize("times", TURNS)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_restart_with_another_world_size_takes_the_place_of_the_ranks_before(
    tmp_path: Path, first: str, times: int
) -> None:
    """Ranks of the node that is named come first, and ranks of the earlier start wait in a step."""
    with Nodes(tmp_path, 2) as nodes, contextlib.ExitStack() as stack:
        baseline = Baseline(nodes, 4)
        route = Route.over(nodes)
        old = stack.enter_context(job_over(nodes, 4, restart_count=0))
        whole(on_all(old, NodeRank.declare))
        for turn in range(times):
            step_again(old, 0)
            asking = Asking(old[1:], 1)
            asking.wait_until_asked()
            per_node = 2 if turn % 2 == 0 else 4
            world = 2 * per_node
            order = [range(per_node), range(per_node, world)]
            began = time.monotonic()
            new = []
            for numbers in order if first == "node 0" else order[::-1]:

                def attached(rank: int, count: int = turn + 1, per_node: int = per_node) -> NodeRank:
                    return NodeRank(route, "job", rank, per_node, 2 * per_node, count)

                new += whole(on_all(numbers, attached))
            for each in [*asking.heard(), *Asking(old[:1], 1).heard()]:
                assert type(each.result) is Superseded, each
                assert each.at - began < PROCESS_S, each
            close_all(old)
            old = sorted(new, key=lambda rank: rank.rank)
            stack.callback(close_all, old)
            whole(on_all(old, NodeRank.declare))
        step_again(old, 0)
        close_all(old)
        baseline.check()
