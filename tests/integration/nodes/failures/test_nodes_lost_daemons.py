"""Daemons of a job over nodes that are killed or stopped: every rank elsewhere hears which, and goes on by itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES
from node_faults import NODE_S, PROCESS_S, Asking, Baseline, beside, check_errors, check_step, step_again
from node_jobs import NodeRank, Nodes, Route, job_over
from ranks_in_threads import on_all, whole

from gradsync.errors import NodeLost


def ranks_of(lost: int, per_node: int) -> list[int]:
    return list(range(lost * per_node, (lost + 1) * per_node))


class LostNode:
    """A step in which all ranks but one wait when their node `lost`, which is called `name`, is lost."""

    def __init__(self, ranks: list[NodeRank], lost: int, name: str, step: int) -> None:
        self.others = [rank for rank in ranks if rank.node != lost]
        self.there = [rank for rank in ranks if rank.node == lost]
        self.name, self.step = name, step
        self._idle = self.others[-1]
        self._asking = Asking(self.others[:-1], step)
        self._asking.wait_until_asked()

    def check(self, since: float, within_s: float) -> None:
        """All others hear it in time, and the one that was idle in its next call."""
        numbers = [rank.rank for rank in self.there]
        heard = self._asking.heard()
        check_errors(heard, NodeLost, node=self.name, ranks=numbers, since=since, within_s=within_s)
        asked = time.monotonic()
        idle = Asking([self._idle], self.step).heard()
        check_errors(idle, NodeLost, node=self.name, ranks=numbers, since=asked, within_s=PROCESS_S)


@pytest.mark.parametrize(
    ("count", "per_node", "lost", "times"),
    [(2, 2, 1, 1), (2, 2, 0, 1)]
    + [
        pytest.param(count, 4, lost, TIMES, marks=pytest.mark.long)
        for count, lost in ((2, 1), (2, 0), (3, 1), (3, 0), (4, 3), (4, 0))
    ],
)
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_killed_daemon_is_named_and_its_next_life_is_used(
    tmp_path: Path, count: int, per_node: int, lost: int, times: int
) -> None:
    with Nodes(tmp_path, count) as nodes:
        baseline = Baseline(nodes, per_node)
        with job_over(nodes, per_node) as ranks:
            whole(on_all(ranks, NodeRank.declare))
            for turn in range(times):
                step_again(ranks, 2 * turn)
                loss = LostNode(ranks, lost, f"node{lost}", 2 * turn + 1)
                there = Asking(loss.there, loss.step, again=True)
                there.wait_until_asked()
                began = time.monotonic()
                nodes.kill(lost)
                loss.check(began, PROCESS_S)
                nodes.start_again(lost)
                started = time.monotonic()
                step_again(loss.others, loss.step)
                check_step(ranks, loss.step, [each.result for each in there.heard()])
                assert time.monotonic() - started < 2 * PROCESS_S
        baseline.check()


def stopped(folder: Path, count: int, per_node: int, lost: int, times: int) -> None:
    folder.mkdir()
    with Nodes(folder, count) as nodes:
        baseline = Baseline(nodes, per_node)
        with job_over(nodes, per_node) as ranks:
            whole(on_all(ranks, NodeRank.declare))
            for turn in range(times):
                step_again(ranks, 2 * turn)
                loss = LostNode(ranks, lost, f"node{lost}", 2 * turn + 1)
                there = Asking(loss.there, loss.step)
                there.wait_until_asked()
                process = nodes.daemons[lost].process
                began = time.monotonic()
                process.send_signal(signal.SIGSTOP)
                try:
                    loss.check(began, NODE_S)
                finally:
                    process.send_signal(signal.SIGCONT)
                went_on = time.monotonic()
                elsewhere = {f"node{node}" for node in range(count)} - {loss.name}
                for each in there.heard():
                    assert type(each.result) is NodeLost, each
                    assert each.result.node in elsewhere, each
                    assert each.at - went_on < PROCESS_S, each
                step_again(ranks, loss.step)
                assert time.monotonic() - went_on < NODE_S
        baseline.check()


@pytest.mark.long
@pytest.mark.timeout(4 * DEADLINE_S)
def test_a_stopped_daemon_is_named_when_it_is_silent_and_is_used_when_it_goes_on(tmp_path: Path) -> None:
    """The member's and the coordinator's, twenty times each: four sets of daemons beside each other."""
    sets = [(2, 4, 1), (2, 4, 0), (3, 4, 1), (4, 2, 0)]

    beside(range(len(sets)), lambda index: stopped(tmp_path / f"set{index}", *sets[index], TIMES // 2))


@pytest.mark.parametrize("times", [1, pytest.param(TIMES, marks=pytest.mark.long)])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_jobs_crosswise_over_the_same_daemons_lose_one_of_them_and_go_on(tmp_path: Path, times: int) -> None:
    """The coordinator of one job is a member's daemon in the other."""
    per_node = 2 if times == 1 else 4
    with Nodes(tmp_path, 2) as nodes:
        baseline = Baseline(nodes, per_node)
        turned = Route.over(nodes, turned=True)
        with job_over(nodes, per_node, "there") as there, job_over(nodes, per_node, "back", turned) as back:
            whole(on_all([*there, *back], NodeRank.declare))
            for turn in range(times):
                steps = range(5 * turn, 5 * turn + 4)
                taken = on_all([*there, *back], lambda rank, steps=steps: [rank.step(step) for step in steps])
                for ranks in (whole(taken)[: len(there)], taken[len(there) :]):
                    for step, reports in zip(steps, zip(*ranks, strict=True), strict=True):
                        check_step(there, step, reports)
                lost = turn % 2
                losses = [
                    LostNode(job, at, f"node{lost}", 5 * turn + 4) for job, at in ((there, lost), (back, 1 - lost))
                ]
                asking = [Asking(loss.there, loss.step, again=True) for loss in losses]
                for each in asking:
                    each.wait_until_asked()
                began = time.monotonic()
                nodes.kill(lost)
                for loss in losses:
                    loss.check(began, PROCESS_S)
                nodes.start_again(lost)
                step_both = Asking([rank for loss in losses for rank in loss.others], 5 * turn + 4, again=True)
                heard = [step_both.heard(), *(each.heard() for each in asking)]
                for each in heard:
                    check_step(there, 5 * turn + 4, [one.result for one in each])
        baseline.check()
