"""Links between nodes that are slow, cut, silent, or open at one end only; and a join that comes late."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES
from link_proxy import DOWN, UP, Proxy
from node_faults import NODE_S, PROCESS_S, Asking, Baseline, beside, check_errors, check_step, step_again
from node_jobs import NodeRank, Nodes, Route, job_over
from ranks_in_threads import on_all, whole

from gradsync.errors import NodeLost

NODES, PER_NODE = 4, 2
FAR = 2  # the node whose link goes through the proxy

# What happens to the link, and when the ranks of node FAR and those of the other nodes hear of it.
FAULTS: dict[str, tuple[Callable[[Proxy], None], float, float]] = {
    "cut": (Proxy.cut, PROCESS_S, PROCESS_S),
    "silent up": (lambda proxy: proxy.hold(UP), NODE_S, NODE_S),
    "silent down": (lambda proxy: proxy.hold(DOWN), NODE_S, NODE_S),
    "silent": (lambda proxy: proxy.hold(UP, DOWN), NODE_S, NODE_S),
    "open at the coordinator": (lambda proxy: proxy.reset(UP), PROCESS_S, PROCESS_S),
    "open at the member": (lambda proxy: proxy.reset(DOWN), NODE_S, PROCESS_S),
}


def lose_the_link(proxy: Proxy, ranks: list[NodeRank], fault: str, step: int) -> None:
    """All ranks but the first wait in a step when that happens to the link of node FAR; then it heals."""
    happen, far_s, others_s = FAULTS[fault]
    step_again(ranks, step)
    asking = Asking(ranks[1:], step + 1)
    asking.wait_until_asked()
    began = time.monotonic()
    happen(proxy)
    heard = asking.heard()
    far = [rank.rank for rank in ranks if rank.node == FAR]
    there = [each for each in heard if each.node == FAR]
    others = [each for each in heard if each.node != FAR]
    check_errors(others, NodeLost, node=f"node{FAR}", ranks=far, since=began, within_s=others_s)
    check_errors(there, NodeLost, node="node0", ranks=list(range(PER_NODE)), since=began, within_s=far_s)
    asked = time.monotonic()  # and the one that was idle hears it in its next call
    idle = Asking(ranks[:1], step + 1).heard()
    check_errors(idle, NodeLost, node=f"node{FAR}", ranks=far, since=asked, within_s=PROCESS_S)
    proxy.heal()
    healed = time.monotonic()
    step_again(ranks, step + 1)
    assert time.monotonic() - healed < NODE_S


def broken(nodes: Nodes, name: str, fault: str, times: int) -> None:
    with Proxy(nodes.coordinator) as proxy:
        route = Route.over(nodes, {FAR: proxy.address})
        with job_over(nodes, PER_NODE, name, route) as ranks:
            whole(on_all(ranks, NodeRank.declare))
            for turn in range(times):
                lose_the_link(proxy, ranks, fault, 2 * turn)


@pytest.mark.parametrize("fault", ["cut", "open at the coordinator"])
def test_a_link_that_ends_is_known_at_once_at_both_ends(tmp_path: Path, fault: str) -> None:
    with Nodes(tmp_path, NODES) as nodes:
        broken(nodes, "job", fault, 1)


@pytest.mark.long
@pytest.mark.timeout(5 * DEADLINE_S)
def test_links_that_break_in_any_way_are_named_in_time_and_healed(tmp_path: Path) -> None:
    """Jobs beside each other over the same daemons, two for each way in which a link breaks, and ten times each."""
    jobs = [(fault, half) for fault in FAULTS for half in (0, 1)]

    def body(job: tuple[str, int]) -> None:
        fault, half = job
        broken(nodes, f"{fault} {half}", fault, TIMES // 2)

    with Nodes(tmp_path, NODES) as nodes:
        baseline = Baseline(nodes, PER_NODE)
        beside(jobs, body)
        baseline.check()


def test_a_slow_link_gives_the_same_numbers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(Nodes(tmp_path, 2))
        proxy = stack.enter_context(Proxy(nodes.coordinator))
        ranks = stack.enter_context(job_over(nodes, 2, route=Route.over(nodes, {1: proxy.address})))
        whole(on_all(ranks, NodeRank.declare))
        proxy.delay_s = 0.02
        began = time.monotonic()
        for step in range(3):
            check_step(ranks, step, whole(on_all(ranks, lambda rank, step=step: rank.step(step))))
        assert time.monotonic() - began > 3 * 4 * proxy.delay_s, "ask, decision, vote and done cross it"


def join_late(nodes: Nodes, proxy: Proxy, ranks: list[NodeRank], step: int) -> None:
    """Node 1 joins over a link that keeps its join until the next life of its daemon has joined and taken a step."""
    step_again(ranks, step)
    late = proxy.cut_and_trap_next()
    assert late.caught.wait(DEADLINE_S), "the member does not join again"
    nodes.kill(1)
    nodes.start_again(1)
    step_again(ranks, step + 1)
    (epoch,) = {rank.job.epoch for rank in ranks}
    assert not late.ended.is_set(), "it comes too late for this test"
    proxy.release(late)
    assert late.ended.wait(PROCESS_S), "the coordinator keeps a link that no life of a daemon has"
    check_step(ranks, step + 2, whole(on_all(ranks, lambda rank: rank.step(step + 2))))
    assert {rank.job.epoch for rank in ranks} == {epoch}


@pytest.mark.parametrize("times", [1, pytest.param(TIMES, marks=pytest.mark.long)])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_the_join_of_an_earlier_life_that_comes_late_disturbs_nobody(tmp_path: Path, times: int) -> None:
    per_node = 2 if times == 1 else 4
    with Nodes(tmp_path, 2) as nodes:
        baseline = Baseline(nodes, per_node)
        with contextlib.ExitStack() as stack:
            proxy = stack.enter_context(Proxy(nodes.coordinator))
            route = Route.over(nodes, {1: proxy.address})
            ranks = stack.enter_context(job_over(nodes, per_node, route=route))
            whole(on_all(ranks, NodeRank.declare))
            for turn in range(times):
                join_late(nodes, proxy, ranks, 3 * turn)
        baseline.check()
