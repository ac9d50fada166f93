"""The daemon of rank 0 comes back, and rank 0 is the last of its ranks to find it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S
from link_proxy import DOWN, Proxy
from node_faults import Asking, wait_for
from node_jobs import NodeRank, Nodes, Route
from rank_process import RankProcess
from ranks_in_threads import on_all, whole
from sync_jobs import MediumRank

import gradsync

PER_NODE = 2
WORLD_SIZE = 2 * PER_NODE


def votes_are_waited_for(address: str) -> bool:
    with gradsync.connect(address, timeout=DEADLINE_S) as client:
        return any("the verdict of all nodes" in job["reason"] for job in client.status()["jobs"])


@pytest.mark.parametrize("kind", [NodeRank, MediumRank])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_steps_go_on_when_rank_0_comes_back_after_the_other_ranks_of_its_node(
    tmp_path: Path, kind: Callable[..., Any]
) -> None:
    """The others are in doubt about a vote, so that their daemon looks for rank 0 before it has come: at its own
    address. It must not take itself for another node."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(Nodes(tmp_path, 2))
        proxy = stack.enter_context(Proxy(nodes.coordinator))
        route = Route.over(nodes, {1: proxy.address})
        first = stack.enter_context(contextlib.closing(RankProcess(route, "job", 0, PER_NODE, WORLD_SIZE, kind)))
        ranks = [kind(route, "job", rank, PER_NODE, WORLD_SIZE) for rank in range(1, WORLD_SIZE)]
        for rank in ranks:
            stack.callback(rank.client.close)
        whole(on_all([first, *ranks], lambda rank: rank.declare()))
        whole(on_all([first, *ranks], lambda rank: rank.step_until_done(0)))
        proxy.hold_messages(DOWN)  # node 1 hears of no decision, so that it does not vote
        asking = Asking([first, *ranks], 1, again=True)
        wait_for(lambda: votes_are_waited_for(nodes.address(0)), "node 0 does not vote")
        first.stop()
        nodes.kill(0)
        proxy.cut()
        nodes.start_again(0)
        nodes.daemons[0].wait_for_log("linked to 127.0.0.2, the node of rank 0")
        proxy.heal()
        nodes.daemons[0].wait_for_log("link to another daemon ")  # node 1, which comes behind the daemon itself
        first.go_on()
        whole([each.result for each in asking.heard()])
        whole(on_all([first, *ranks], lambda rank: rank.step_until_done(2)))
