"""Ranks of a job over nodes that are killed or stopped: which rank of which node it was, on every other rank."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S, TIMES
from node_faults import PROCESS_S, AnyRank, Asking, Baseline, check_errors, step_again
from node_jobs import NodeRank, Nodes, Route, close_all
from rank_process import RankProcess
from ranks_in_threads import on_all, whole

import gradsync
from gradsync.errors import RankLost, StepTimeout

STEP_S = 1.0
QUICK = [(2, 2, 1)]
LONG = [pytest.param(count, 4, TIMES, marks=pytest.mark.long) for count in (2, 3, 4)]


class Ranks:
    """The first and the last rank of a job in processes of their own, all others on threads."""

    def __init__(self, nodes: Nodes, per_node: int) -> None:
        self._route, self._per_node = Route.over(nodes), per_node
        self.world_size = per_node * len(nodes.daemons)
        self.all: list[AnyRank] = whole(on_all(range(self.world_size), self._attached))
        whole(on_all(self.all, lambda rank: rank.declare()))

    def _attached(self, rank: int) -> AnyRank:
        kind = RankProcess if rank in (0, self.world_size - 1) else NodeRank
        return kind(self._route, "job", rank, self._per_node, self.world_size)

    def victim(self, turn: int) -> tuple[RankProcess, list[AnyRank]]:
        """One of the two in turn, and the others."""
        victim = self.all[0 if turn % 2 else -1]
        assert isinstance(victim, RankProcess)
        return victim, [rank for rank in self.all if rank is not victim]

    def replace(self, victim: RankProcess) -> None:
        victim.close()
        self.all[victim.rank] = heir = self._attached(victim.rank)
        heir.declare()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for rank in self.all:
            if isinstance(rank, RankProcess):
                rank.close()
        close_all([rank for rank in self.all if isinstance(rank, NodeRank)])


@pytest.mark.parametrize(("count", "per_node", "times"), QUICK + LONG)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_killed_rank_is_named_on_all_nodes_and_another_takes_its_place(
    tmp_path: Path, count: int, per_node: int, times: int
) -> None:
    with Nodes(tmp_path, count) as nodes:
        baseline = Baseline(nodes, per_node)
        with Ranks(nodes, per_node) as ranks:
            for turn in range(times):
                step_again(ranks.all, 2 * turn)
                victim, others = ranks.victim(turn)
                waits = turn % 4 < 2  # else it is killed between two steps
                if waits:
                    asking = Asking(others, 2 * turn + 1)
                    asking.wait_until_asked()
                began = time.monotonic()
                victim.kill()
                if not waits:
                    asking = Asking(others, 2 * turn + 1)
                check_errors(
                    asking.heard(),
                    RankLost,
                    node=f"node{victim.node}",
                    ranks=[victim.rank],
                    since=began,
                    within_s=PROCESS_S,
                    own_node=victim.node,
                )
                ranks.replace(victim)
                step_again(ranks.all, 2 * turn + 1)
        baseline.check()


@pytest.mark.parametrize(("count", "per_node", "times"), QUICK + LONG)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_stopped_rank_is_warned_of_and_named_at_the_deadline_of_the_step(
    tmp_path: Path, count: int, per_node: int, times: int
) -> None:
    with Nodes(tmp_path, count) as nodes:
        baseline = Baseline(nodes, per_node)
        with Ranks(nodes, per_node) as ranks, contextlib.ExitStack() as watching:
            alerts: list[dict[str, Any]] = []
            for daemon in nodes.daemons:
                client = watching.enter_context(gradsync.connect(daemon.socket, timeout=DEADLINE_S))
                watching.enter_context(client.subscribe(["alert"], lambda push: alerts.append(push["event"])))
            for turn in range(times):
                step_again(ranks.all, 2 * turn)
                victim, others = ranks.victim(turn)
                victim.stop()
                alerts.clear()
                began = time.monotonic()
                heard = Asking(others, 2 * turn + 1, timeout=STEP_S).heard()
                check_errors(
                    heard,
                    StepTimeout,
                    node=f"node{victim.node}",
                    ranks=[victim.rank],
                    since=began,
                    within_s=STEP_S + PROCESS_S,
                    own_node=victim.node,
                )
                assert min(each.at for each in heard) - began > 0.9 * STEP_S
                assert all(each.result.waited_s > 0.9 * STEP_S for each in heard), heard
                half = [alert["what"] for alert in alerts if alert["kind"] == "deadline_half"]
                assert half, alerts
                assert all(f"rank {victim.rank}" in what for what in half), half
                victim.go_on()
                step_again(ranks.all, 2 * turn + 1)
        baseline.check()
