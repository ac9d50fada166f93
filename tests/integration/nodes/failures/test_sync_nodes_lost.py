"""Whatever is lost while gradients travel: a named error, one verdict for all ranks, and then steps go on."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S
from link_proxy import Proxy
from node_faults import NODE_S, PROCESS_S, Asking, Baseline, Heard, check_errors, soon, wait_for
from node_jobs import Nodes, Route, job_over
from rank_process import RankProcess
from ranks_in_threads import on_all, whole
from sync_jobs import MediumRank, SyncRank, check_sync, sync_again

from gradsync.errors import ConnectionLost, GradsyncError, NodeLost, NodeRefused, RankLost, StepTimeout

PER_NODE = 2


@contextlib.contextmanager
def stuck(folder: Path) -> Iterator[tuple[Nodes, Proxy, list[MediumRank]]]:
    """Two nodes that have taken step 0, and a proxy between them that holds what travels from now on."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(Nodes(folder, 2))
        proxy = stack.enter_context(Proxy(nodes.coordinator))
        route = Route.over(nodes, {1: proxy.address})
        ranks = stack.enter_context(job_over(nodes, PER_NODE, route=route, kind=MediumRank))
        whole(on_all(ranks, MediumRank.declare))
        sync_again(ranks, 0)
        assert proxy.data_links() == 2
        proxy.hold_data()
        yield nodes, proxy, ranks


def of_node(ranks: list[Any], node: int) -> list[Any]:
    return [rank for rank in ranks if rank.node == node]


def begun(ranks: list[MediumRank], step: int, **given: Any) -> Asking:
    asking = Asking(ranks, step, **given)
    asking.wait_until_asked()
    return asking


def check_no_verdict_differs(heard: list[Heard]) -> None:
    """Nobody took the step."""
    for each in heard:
        assert isinstance(each.result, GradsyncError), each


@pytest.mark.parametrize("lost", [1, 0])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_daemon_that_is_killed(tmp_path: Path, lost: int) -> None:
    with stuck(tmp_path) as (nodes, proxy, ranks):
        there = begun(of_node(ranks, lost), 1, again=True)
        others = begun(of_node(ranks, 1 - lost), 1)
        began = time.monotonic()
        nodes.kill(lost)
        numbers = [rank.rank for rank in of_node(ranks, lost)]
        check_errors(others.heard(), NodeLost, node=f"node{lost}", ranks=numbers, since=began, within_s=PROCESS_S)
        proxy.heal()
        nodes.start_again(lost)
        again = begun(of_node(ranks, 1 - lost), 1, again=True)
        reports = {each.rank: each.result for each in [*there.heard(), *again.heard()]}
        check_sync(ranks, 1, [reports[rank.rank] for rank in ranks])
        sync_again(ranks, 2)


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_daemon_that_is_stopped(tmp_path: Path) -> None:
    with stuck(tmp_path) as (nodes, proxy, ranks):
        asking = begun(ranks, 1)
        process = nodes.daemons[1].process
        began = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        try:
            # Ranks of the daemon that is stopped hear it when it goes on.
            time.sleep(NODE_S)
        finally:
            process.send_signal(signal.SIGCONT)
        heard = asking.heard()
        here = [each for each in heard if each.node == 0]
        check_errors(here, NodeLost, node="node1", ranks=[2, 3], since=began, within_s=NODE_S)
        check_no_verdict_differs(heard)
        proxy.heal()
        sync_again(ranks, 1)


@pytest.mark.training
@pytest.mark.timeout(3 * DEADLINE_S)
def test_data_connections_that_are_cut(tmp_path: Path) -> None:
    """The links of both daemons live on: they agree that the attempt failed, and make others."""
    with stuck(tmp_path) as (_, proxy, ranks):
        asking = begun(ranks, 1)
        began = time.monotonic()
        proxy.cut_data()
        heard = asking.heard()
        assert {type(each.result) for each in heard} == {NodeLost}, heard
        (said,) = {str(each.result) for each in heard}
        (node,) = {each.result.node for each in heard}
        assert node in ("node0", "node1")
        other = "node1" if node == "node0" else "node0"
        assert f"the connection of node '{other}' to node '{node}' that gradients travel over was lost" in said
        assert max(each.at for each in heard) - began < PROCESS_S
        proxy.heal()
        sync_again(ranks, 1)
        sync_again(ranks, 2)
        assert proxy.data_links() == 4


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_data_connections_that_are_held_delay_a_step_and_no_more(tmp_path: Path) -> None:
    with stuck(tmp_path) as (_, proxy, ranks):
        asking = begun(ranks, 1)
        time.sleep(7.0)  # longer than any silence on a link may last
        proxy.heal()
        check_sync(ranks, 1, [each.result for each in asking.heard()])
        assert proxy.data_links() == 2


@pytest.mark.timeout(3 * DEADLINE_S)
def test_data_connections_that_are_held_until_the_deadline(tmp_path: Path) -> None:
    with stuck(tmp_path) as (_, proxy, ranks):
        heard = begun(ranks, 1, timeout=2.0).heard()
        assert {type(each.result) for each in heard} == {StepTimeout}, heard
        proxy.heal()
        sync_again(ranks, 1)


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_data_connections_that_cannot_be_made(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(Nodes(tmp_path, 2))
        proxy = stack.enter_context(Proxy(nodes.coordinator))
        proxy.refuses_data = True
        route = Route.over(nodes, {1: proxy.address})
        ranks = stack.enter_context(job_over(nodes, 1, route=route, kind=SyncRank))
        began = time.monotonic()
        errors = on_all(ranks, SyncRank.declare)
        assert 9.0 < time.monotonic() - began < 10.0 + NODE_S
        for error in errors:
            assert type(error) is NodeRefused, error
            assert "no data connection with node" in str(error)
        proxy.heal()
        whole(on_all(ranks, SyncRank.declare))
        sync_again(ranks, 0)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_daemon_that_is_killed_while_data_connections_are_made(tmp_path: Path) -> None:
    """What the ranks of the other node declared counts on: they hear of no error, and the next life makes others."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(Nodes(tmp_path, 2))
        proxy = stack.enter_context(Proxy(nodes.coordinator))
        proxy.hold_data()
        route = Route.over(nodes, {1: proxy.address})
        ranks = stack.enter_context(job_over(nodes, PER_NODE, route=route, kind=SyncRank))
        declared, lost = (soon(of_node(ranks, node), SyncRank.declare) for node in range(2))
        wait_for(lambda: proxy.data_links() == 2, "no data connection is tried")
        nodes.kill(1)
        nodes.start_again(1)
        proxy.heal()
        assert {type(error) for error in lost.result(2 * DEADLINE_S)} == {ConnectionLost}
        whole(on_all(of_node(ranks, 1), SyncRank.declare))
        whole(declared.result(2 * DEADLINE_S))
        sync_again(ranks, 0)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(Nodes(tmp_path, 2))
        proxy = stack.enter_context(Proxy(nodes.coordinator))
        route = Route.over(nodes, {1: proxy.address})
        world = 2 * PER_NODE
        killed = stack.enter_context(
            contextlib.closing(RankProcess(route, "job", world - 1, PER_NODE, world, MediumRank))
        )
        ranks = [MediumRank(route, "job", rank, PER_NODE, world) for rank in range(world - 1)]
        for rank in ranks:
            stack.callback(rank.client.close)
        whole(on_all([*ranks, killed], lambda rank: rank.declare()))
        whole(on_all([*ranks, killed], lambda rank: rank.step_until_done(0)))
        proxy.hold_data()
        soon([killed], lambda rank: rank.step(1))  # which it does not live to hear of
        asking = begun(ranks, 1)
        began = time.monotonic()
        killed.kill()
        check_errors(asking.heard(), RankLost, node="node1", ranks=[3], since=began, within_s=PROCESS_S, own_node=1)
        proxy.heal()
        successor = stack.enter_context(
            contextlib.closing(RankProcess(route, "job", world - 1, PER_NODE, world, MediumRank))
        )
        declared = on_all([*ranks, successor], lambda rank: rank.declare())
        whole(declared)
        check_sync(ranks, 1, whole(on_all([*ranks, successor], lambda rank: rank.step_until_done(1)))[: world - 1])


@pytest.mark.timeout(3 * DEADLINE_S)
def test_nothing_of_a_job_is_left(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        baseline = Baseline(nodes, PER_NODE)
        for _ in range(3):
            with job_over(nodes, PER_NODE, kind=SyncRank) as ranks:
                whole(on_all(ranks, SyncRank.declare))
                sync_again(ranks, 0)
        baseline.check()
