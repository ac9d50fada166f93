"""The same failures of links as in test_nodes_links.py, made by the kernel, between network namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES
from node_faults import NODE_S, Asking, Baseline, beside, check_errors, soon, step_again, wait_for
from node_jobs import NodeRank, job_over
from node_namespaces import NodesInNamespaces, not_allowed
from ranks_in_threads import on_all, whole
from sync_jobs import MediumRank, sync_again
from travelling import LOOKS_S, SILENCE_S, check_link_lost

from gradsync.errors import NodeLost

PER_NODE = 4
FAULTS: dict[str, Callable[[NodesInNamespaces, int], None]] = {
    "link down": NodesInNamespaces.link_down,
    "nothing comes in": lambda nodes, node: nodes.drop(node, "input"),
    "nothing goes out": lambda nodes, node: nodes.drop(node, "output"),
    "nothing either way": lambda nodes, node: nodes.drop(node, "input", "output"),
}


def lose_the_node(nodes: NodesInNamespaces, ranks: list[NodeRank], fault: str, cut: int, step: int) -> None:
    """All ranks but one wait in a step when that happens to the only link of a node."""
    step_again(ranks, step)
    asking = Asking(ranks[1:], step + 1)
    asking.wait_until_asked()
    began = time.monotonic()
    FAULTS[fault](nodes, cut)
    heard = asking.heard()
    there = [each for each in heard if each.node == cut]
    others = [each for each in heard if each.node != cut]
    lost = [rank.rank for rank in ranks if rank.node == cut]
    left = [rank.rank for rank in ranks if rank.node != cut]
    check_errors(others, NodeLost, node=f"node{cut}", ranks=lost, since=began, within_s=NODE_S)
    check_errors(there, NodeLost, node=f"node{1 - cut}", ranks=left, since=began, within_s=NODE_S)
    nodes.heal(cut)
    healed = time.monotonic()
    step_again(ranks, step + 1)
    assert time.monotonic() - healed < NODE_S


def broken(folder: Path, fault: str, cut: int) -> None:
    folder.mkdir()
    with NodesInNamespaces(folder, 2) as nodes:
        baseline = Baseline(nodes, PER_NODE)
        with job_over(nodes, PER_NODE) as ranks:
            whole(on_all(ranks, NodeRank.declare))
            for turn in range(TIMES // 2):
                lose_the_node(nodes, ranks, fault, cut, 2 * turn)
        baseline.check()


@pytest.mark.long
@pytest.mark.timeout(4 * DEADLINE_S)
@pytest.mark.parametrize("faults", [["link down"], [fault for fault in FAULTS if fault != "link down"]])
def test_a_node_that_the_network_loses_is_named_in_time_and_comes_back(tmp_path: Path, faults: list[str]) -> None:
    """The member's node and the coordinator's, many times each: sets of namespaces beside each other."""
    reason = not_allowed(rules=faults != ["link down"])
    if reason is not None:
        pytest.skip(reason)
    cases = [(fault, cut) for fault in faults for cut in (0, 1)]
    beside(range(len(cases)), lambda index: broken(tmp_path / f"set{index}", *cases[index]))


@pytest.mark.long
@pytest.mark.timeout(12 * DEADLINE_S)
def test_a_firewall_that_drops_data_connections_alone(tmp_path: Path) -> None:
    """Beats pass. TCP would send again for a quarter of an hour; the connections' own clock ends the attempt."""
    reason = not_allowed(rules=True)
    if reason is not None:
        pytest.skip(reason)
    with NodesInNamespaces(tmp_path, 2) as nodes, job_over(nodes, 2, kind=MediumRank) as ranks:
        declared = soon([rank for rank in ranks if rank.node == 1], MediumRank.declare)
        wait_for(lambda: len(nodes.connections_out(1)) == 1, "node 1 has no link")
        beats = nodes.connections_out(1)  # those of data are made when node 0 has declared, too
        whole(on_all([rank for rank in ranks if rank.node == 0], MediumRank.declare))
        whole(declared.result(2 * DEADLINE_S))
        sync_again(ranks, 0)
        for turn in range(TIMES):
            data = nodes.connections_out(1) - beats
            assert len(data) == 2, data
            nodes.drop_connections(1, data)
            began = time.monotonic()
            heard = Asking(ranks, 2 * turn + 1).heard()
            said = check_link_lost(heard, began, SILENCE_S * 0.8, SILENCE_S + LOOKS_S)
            assert "no byte came over the connection of " in said
            assert "10.77.0.2:9478" in said
            nodes.heal(1)
            sync_again(ranks, 2 * turn + 2)


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
@pytest.mark.parametrize("cut", [1, 0])
def test_gradients_travel_between_machines_and_go_on_when_the_network_does(tmp_path: Path, cut: int) -> None:
    """Daemons that listen everywhere are dialled where the coordinator sees them."""
    reason = not_allowed(rules=False)
    if reason is not None:
        pytest.skip(reason)
    with NodesInNamespaces(tmp_path, 3, "0.0.0.0") as nodes, job_over(nodes, 1, kind=MediumRank) as ranks:
        whole(on_all(ranks, MediumRank.declare))
        sync_again(ranks, 0)
        nodes.link_down(cut)
        began = time.monotonic()
        heard = Asking(ranks, 1).heard()
        assert {type(each.result) for each in heard} == {NodeLost}, heard
        assert max(each.at for each in heard) - began < NODE_S
        assert {each.result.node for each in heard if each.node != cut} == {f"node{cut}"}, heard
        nodes.heal(cut)
        sync_again(ranks, 1)
        sync_again(ranks, 2)
