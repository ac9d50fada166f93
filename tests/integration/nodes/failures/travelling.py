"""A job whose gradients stand still in the middle of a bucket, between two nodes and behind a proxy, so that a test can
do something to it there. Its values differ from step to step: what is left of one shows in the sums of the next."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from link_proxy import Proxy
from node_faults import AnyRank, Asking, Baseline, wait_for
from node_jobs import NodeRank, Nodes, Route, close_all
from rank_process import RankProcess
from ranks_in_threads import on_all, whole
from sync_jobs import MediumRank, SyncRank, check_sync, sync_again

from gradsync.errors import NodeLost

PER_NODE = 2
WORLD_SIZE = 2 * PER_NODE
PASSING = 1_500_000  # bytes of a bucket of 4 MiB that pass on each connection before it stands still
SILENCE_S = 10.0  # on a data connection, behind which it is given up
LOOKS_S = 3.0  # it is looked at once a second, and these machines are slow


class EarlyRank(MediumRank):
    """A rank that may have called its gradients ready long before it asks for the step."""

    def ready_early(self, step: int) -> None:
        self.write(step)

    def ask(self, step: int) -> Any:
        return self.grads.finish(step=step)


def check_whole(ranks: Sequence[AnyRank], step: int) -> None:
    """All of them take a step. Ranks of this process hold the exact sums, and all have the same numbers."""
    reports = whole(on_all(ranks, lambda rank: rank.step_until_done(step)))
    here = [(rank, report) for rank, report in zip(ranks, reports, strict=True) if isinstance(rank, SyncRank)]
    check_sync([rank for rank, _ in here], step, [report for _, report in here])
    assert len({(report.norm, report.coefficient, report.step) for report in reports}) == 1


class Travelling:
    """The ranks of node 0, and those of node 1; the last one is a process where `apart`."""

    def __init__(self, folder: Path, *, apart: bool = False) -> None:
        with contextlib.ExitStack() as stack:
            self.nodes = stack.enter_context(Nodes(folder, 2))
            self._baseline = Baseline(self.nodes, PER_NODE, MediumRank, sync_again)
            self.proxy = stack.enter_context(Proxy(self.nodes.coordinator))
            self.route = Route.over(self.nodes, {1: self.proxy.address})
            self.ranks: list[AnyRank] = []
            stack.callback(self._close_ranks)
            self.ranks = whole(on_all(range(WORLD_SIZE), lambda rank: self._attached(rank, apart)))
            whole(on_all(self.ranks, lambda rank: rank.declare()))
            self.next_step = 0
            self.go_on()
            self._stack = stack.pop_all()

    def __enter__(self) -> Travelling:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            if error[0] is None:
                self._close_ranks()
                self._baseline.check()

    def _attached(self, rank: int, apart: bool) -> AnyRank:
        arguments = (self.route, "job", rank, PER_NODE, WORLD_SIZE)
        return RankProcess(*arguments, EarlyRank) if apart and rank == WORLD_SIZE - 1 else EarlyRank(*arguments)

    def _close_ranks(self) -> None:
        close_all([rank for rank in self.ranks if isinstance(rank, NodeRank)])
        for rank in self.ranks:
            if isinstance(rank, RankProcess):
                rank.close()
        self.ranks = []

    @property
    def last(self) -> RankProcess:
        """The rank that is a process."""
        rank = self.ranks[-1]
        assert isinstance(rank, RankProcess)
        return rank

    def of_node(self, node: int) -> list[AnyRank]:
        return [rank for rank in self.ranks if rank.node == node]

    def replace_last(self) -> None:
        self.last.close()
        self.ranks[-1] = self._attached(WORLD_SIZE - 1, apart=True)
        self.ranks[-1].declare()

    def stand_still(self, asking: Sequence[AnyRank] | None = None, **given: Any) -> Asking:
        """All ranks ask for the next step, or these do, and its first bucket stops half-way. What was asked for is lost
        or done by its own number; `go_on` takes the one behind it."""
        self.proxy.hold_data_after(PASSING)
        asked = Asking(self.ranks if asking is None else asking, self.next_step, **given)
        assert self.proxy.full.wait(30.0), "no bucket travels"
        asked.wait_until_asked()
        return asked

    def go_on(self) -> None:
        """Two steps later than the last one that was tried, the sums are exact."""
        self.next_step += 1
        check_whole(self.ranks, self.next_step)
        self.next_step += 1
        check_whole(self.ranks, self.next_step)
        self.next_step += 1


def check_link_lost(heard: Sequence[Any], since: float, at_least_s: float, within_s: float) -> str:
    """All ranks heard that one connection between the two nodes was lost, and why, in time; that reason."""
    assert {type(each.result) for each in heard} == {NodeLost}, heard
    (node,) = {each.result.node for each in heard}
    other = {"node0": "node1", "node1": "node0"}[node]
    (said,) = {str(each.result) for each in heard}
    assert f"the connection of node '{other}' to node '{node}' that gradients travel over was lost: " in said
    lost = [rank for rank in range(WORLD_SIZE) if f"node{rank // PER_NODE}" == node]
    assert all(list(each.result.ranks) == lost for each in heard), heard
    for each in heard:
        assert at_least_s <= each.at - since < within_s, (each, each.at - since)
    return said


def wait_a_while(seconds: float, nothing_came: Asking) -> None:
    end = time.monotonic() + seconds
    wait_for(lambda: nothing_came.ended() or time.monotonic() > end, "")
    assert not nothing_came.ended(), nothing_came.heard()
