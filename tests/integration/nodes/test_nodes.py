"""One job over the daemons of several nodes: numbers, refusals, and what becomes of a step when something is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_jobs import MAX_NORM, NodeRank, Nodes, Route, exact_norm, job_over
from ranks_in_threads import on_all, whole

from gradsync import Replicate, Row, Tensor
from gradsync.errors import (
    DeclareTimeout,
    JobMismatch,
    NodeLost,
    NoPeers,
    PlanMismatch,
    RankLost,
    RpcError,
    StepTimeout,
)


def within_one_ulp(found: float, exact: float) -> bool:
    return abs(np.float32(found) - np.float32(exact)) <= np.spacing(np.float32(exact))


@pytest.mark.parametrize(("count", "per_node"), [(2, 2), (3, 2), (4, 4)])
def test_every_rank_gets_the_norm_of_the_whole_model_and_one_coefficient(
    tmp_path: Path, count: int, per_node: int
) -> None:
    with Nodes(tmp_path, count) as nodes, job_over(nodes, per_node) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        for step in range(5):
            reports = whole(on_all(ranks, lambda rank, step=step: rank.step(step)))
            exact = exact_norm(step, len(ranks))
            assert within_one_ulp(reports[0].norm, exact)
            assert len({(report.norm, report.coefficient) for report in reports}) == 1
            assert reports[0].coefficient == pytest.approx(MAX_NORM / exact, rel=1e-6)


def test_a_daemon_that_is_not_set_up_for_nodes_says_what_to_set(tmp_path: Path) -> None:
    with Nodes(tmp_path, 1, linked=False) as nodes, pytest.raises(NoPeers) as refused:
        NodeRank(nodes, "job", 0, 2, 4)
    assert "has 2 of its 4 ranks on this node" in str(refused.value)
    assert "[peer] listen and [peer] token_file" in str(refused.value)


def test_one_rank_more_than_a_node_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with Nodes(tmp_path, 1) as nodes:
        first = [NodeRank(nodes, "job", rank, 2, 4) for rank in (0, 1)]
        nodes.daemons.append(nodes.daemons[0])  # where rank 2 should have another
        with pytest.raises(JobMismatch) as refused:
            NodeRank(nodes, "job", 2, 2, 4)
        assert "rank 2 would be rank 3 of this node" in str(refused.value)
        for rank in first:
            rank.client.close()


def test_a_value_that_is_not_finite_is_named_on_all_nodes(tmp_path: Path) -> None:
    def step(rank: NodeRank) -> Any:
        rank.write(1)
        if rank.rank == 3:
            rank.grads.write("cut", Row.of(np.array([1, np.nan, 1, 1], np.float32)))
        return rank.grads.finish(step=1)

    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        for report in whole(on_all(ranks, step)):
            assert [found.tensor for found in report.nonfinite] == ["cut"], report
            assert [input.rank for input in report.nonfinite[0].inputs] == [3]


def test_copies_that_differ_between_nodes_are_named(tmp_path: Path) -> None:
    def step(rank: NodeRank) -> Any:
        rank.write(1, np.full(8, 2 if rank.rank == 5 else 1, np.float32))
        return rank.grads.finish(step=1)

    with Nodes(tmp_path, 3) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        for report in whole(on_all(ranks, step)):
            assert [(found.tensor, list(found.suspects)) for found in report.divergence] == [("copied", [5])]


def test_a_rank_that_does_not_come_is_named_with_its_node(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        began = time.monotonic()
        results = on_all(ranks[:3], lambda rank: rank.step(1, timeout=2.0))
        assert time.monotonic() - began < 30
        for error in results:
            assert isinstance(error, StepTimeout), error
            assert "rank 3" in str(error)
            assert error.node == "node1", error
        [late] = on_all(ranks[3:], lambda rank: rank.step(1))
        assert isinstance(late, RpcError), late
        for report in whole(on_all(ranks, lambda rank: rank.step(1))):
            assert within_one_ulp(report.norm, exact_norm(1, 4))


def test_a_rank_that_is_lost_is_named_with_its_node_on_all_nodes(tmp_path: Path) -> None:
    def step(rank: NodeRank) -> Any:
        if rank.rank == 3:
            time.sleep(0.5)
            rank.client.close()
            return None
        return rank.step(1)

    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        errors = on_all(ranks, step)[:3]
        for error in errors:
            assert isinstance(error, RankLost), error
            assert error.rank == 3
        assert [error.node for error in errors] == ["node1"] * 3


def test_the_node_of_rank_0_is_named_where_it_is_not_reached(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        nodes.kill(0)
        ranks = [NodeRank(nodes, "job", rank, 2, 4) for rank in (2, 3)]
        for error in on_all(ranks, lambda rank: rank.declare(timeout=2.0)):
            assert isinstance(error, DeclareTimeout), error
            assert nodes.coordinator in str(error)
            assert "refused" in str(error), error  # what the kernel says of it
        for rank in ranks:
            rank.client.close()


def test_a_node_that_has_not_come_is_missed_by_numbers(tmp_path: Path) -> None:
    with Nodes(tmp_path, 1) as nodes:
        ranks = [NodeRank(nodes, "job", rank, 2, 4) for rank in (0, 1)]
        for error in on_all(ranks, lambda rank: rank.declare(timeout=2.0)):
            assert isinstance(error, DeclareTimeout), error
            assert "2 of 4 ranks have joined" in str(error)
        for rank in ranks:
            rank.client.close()


def test_nodes_that_declare_other_tensors_are_named_with_the_tensor(tmp_path: Path) -> None:
    def declare(rank: NodeRank) -> None:
        copied = Tensor("copied", (9 if rank.node == 1 else 8,), placements={"dp": Replicate()})
        rank.job.declare([copied], data_path="stats")

    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2) as ranks:
        for error in on_all(ranks, declare):
            assert isinstance(error, PlanMismatch), error
            assert "copied" in str(error)


def test_a_node_with_another_world_size_is_refused_with_both(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        ranks = [NodeRank(nodes, "job", 0, 1, 2), NodeRank(nodes, "job", 1, 1, 3)]
        waited, refused = on_all(ranks, lambda rank: rank.declare(timeout=5.0))
        assert isinstance(waited, DeclareTimeout), waited
        assert isinstance(refused, JobMismatch), refused
        assert "world_size 3" in str(refused)
        assert "has 2" in str(refused)
        for rank in ranks:
            rank.client.close()


def test_a_job_of_the_same_name_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        for _ in range(5):
            with job_over(nodes, 2) as ranks:
                whole(on_all(ranks, NodeRank.declare))
                for report in whole(on_all(ranks, lambda rank: rank.step(1))):
                    assert within_one_ulp(report.norm, exact_norm(1, 4))


@pytest.mark.parametrize("lost", [1, 0])
def test_a_daemon_that_is_killed_is_named_and_its_next_life_goes_on(tmp_path: Path, lost: int) -> None:
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2) as ranks:
        whole(on_all(ranks, NodeRank.declare))
        for step in range(3):
            whole(on_all(ranks, lambda rank, step=step: rank.step(step)))
        others = [rank for rank in ranks if rank.node != lost]

        def asked(rank: NodeRank) -> Any:
            if rank is others[0]:
                time.sleep(0.5)
                nodes.kill(lost)
            return rank.step(3)

        for error in on_all(others, asked):
            assert isinstance(error, NodeLost), error
            assert f"node{lost}" in str(error)
        nodes.start_again(lost)
        for step in range(3, 6):
            reports = whole(on_all(ranks, lambda rank, step=step: rank.step_until_done(step)))
            assert within_one_ulp(reports[0].norm, exact_norm(step, len(ranks)))
            assert len({(report.norm, report.coefficient) for report in reports}) == 1


def test_two_jobs_crosswise_over_the_same_daemons_go_on(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:

        def attached(which: tuple[str, int]) -> NodeRank:
            job, rank = which
            return NodeRank(Route.over(nodes, turned=job == "back"), job, rank, 1, 2)

        ranks = whole(on_all([(job, rank) for job in ("there", "back") for rank in (0, 1)], attached))
        whole(on_all(ranks, NodeRank.declare))
        for step in range(20):
            for report in whole(on_all(ranks, lambda rank, step=step: rank.step(step))):
                assert within_one_ulp(report.norm, exact_norm(step, 2))
        for rank in ranks:
            rank.client.close()
