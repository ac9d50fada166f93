"""What policies remember: over daemons that end in the middle of a run, and from a checkpoint. Thresholds and digests
are those of an undisturbed run, bit for bit.
"""

from __future__ import annotations

import math
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon import DEADLINE_S
from ranks_in_threads import on_all, whole
from restarts import Lives

import gradsync
from gradsync import Clip, Partial, Replicate, Row, Tensor, ZScore
from gradsync.errors import ConnectionLost, InvalidParams, StepMismatch, UsageError

WORLD, STEPS, ENDS = 2, 400, 8
CLIP = Clip.percentile(ceiling=None, percentile=90, window=50, warmup=10, watch=(ZScore(),))
AUTO = Clip.auto(ceiling=None, percentile=90, window=20, warmup=5)
Record = list[tuple[float, float, str, float]]


def norm_of(step: int) -> float:
    """Heavy-tailed, so that thresholds move and some steps are clipped."""
    return float(np.float32(random.Random(step).lognormvariate(0, 1)))


def any_norm_of(step: int) -> float:
    """Now and then one that is not finite."""
    return math.nan if step % 37 == 20 else math.inf if step % 41 == 12 else norm_of(step)


class Rank:
    """One rank of a job: a thread with a connection of its own."""

    norm_of = staticmethod(norm_of)

    def __init__(
        self, address: str, job: str, rank: int, data_path: str, clip: Clip = CLIP, world_size: int = WORLD
    ) -> None:
        self.client = gradsync.connect(address, timeout=DEADLINE_S)
        self.job = self.client.attach(job=job, rank=rank, world_size=world_size)
        self.stats = data_path == "stats"
        self.record: Record = []
        self.clip = clip
        self.declare()

    def declare(self) -> None:
        dp = Replicate() if self.stats else Partial("mean") >> Replicate()
        tensor = Tensor("a", (4,), placements={"dp": dp})
        data_path: Any = "stats" if self.stats else "arena"
        self.grads: Any = self.job.declare([tensor], data_path=data_path, clip=self.clip)

    def step(self, step: int) -> None:
        while True:
            if self.stats:
                self.grads.write("a", Row.of([self.norm_of(step)]))
            else:
                self.grads.input("a").numpy()[:] = [self.norm_of(step), 0, 0, 0]
                self.grads.ready("a")
            try:
                report = self.grads.finish(step=step)
            except ConnectionLost as error:
                if not error.step_lost:
                    raise
                continue
            watch = report.groups[0].watch[0].threshold if report.groups[0].watch else 0.0
            self.record.append((report.threshold, report.coefficient, report.policy_digest, watch))
            return


def start(address: str, job: str, data_path: str) -> list[Rank]:
    return whole(on_all(range(WORLD), lambda rank: Rank(address, job, rank, data_path)))


def undisturbed(address: str, data_path: str) -> Record:
    ranks = start(address, "undisturbed", data_path)
    whole(on_all(range(WORLD), lambda rank: [ranks[rank].step(step) for step in range(STEPS)]))
    assert ranks[0].record == ranks[1].record
    clipped = sum(coefficient < 1 for _, coefficient, _, _ in ranks[0].record)
    assert STEPS * 0.04 < clipped < STEPS * 0.2, "the run would say nothing"
    return ranks[0].record


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.training)])
@pytest.mark.parametrize("data_path", ["arena", "stats"])
def test_thresholds_survive_the_daemon(data_path: str, how: signal.Signals, tmp_path: Path) -> None:
    with Lives(tmp_path) as lives:
        expected = undisturbed(lives.address, data_path)
        ranks = start(lives.address, "disturbed", data_path)
        going = threading.Event()

        def end_now_and_then() -> None:
            chance = random.Random(how)
            while len(lives.processes) <= ENDS and not going.wait(chance.uniform(0.05, 0.25)):
                lives.end(how)

        killer = threading.Thread(target=end_now_and_then)
        killer.start()
        try:

            def train(rank: int) -> None:
                for step in range(STEPS):
                    ranks[rank].step(step)
                    if rank == 0:
                        going.wait(0.005)  # the run shall outlast the daemons
                    while rank == 0 and step == STEPS * 3 // 4 and len(lives.processes) <= 3 and killer.is_alive():
                        going.wait(0.005)

            results = on_all(range(WORLD), train)
        finally:
            going.set()
            killer.join(DEADLINE_S)
        whole(results)
        assert len(lives.processes) > 3, "too few daemons ended"
    assert ranks[0].record == ranks[1].record
    assert ranks[0].record == expected


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with Lives(tmp_path) as lives:
        expected = undisturbed(lives.address, "arena")
        first = start(lives.address, "first", "arena")
        whole(on_all(range(WORLD), lambda rank: [first[rank].step(step) for step in range(150)]))
        states = whole(on_all(range(WORLD), lambda rank: first[rank].grads.state_dict()))
        assert states[0] == states[1]
        whole(on_all(range(WORLD), lambda rank: first[rank].step(150)))
        lives.end(signal.SIGKILL)
        second = start(lives.address, "second", "stats")
        whole(on_all(range(WORLD), lambda rank: second[rank].grads.load_state_dict(states[rank])))
        whole(on_all(range(WORLD), lambda rank: [second[rank].step(step) for step in range(150, STEPS)]))
    assert second[0].record == expected[150:]


class AnyNorm(Rank):
    norm_of = staticmethod(any_norm_of)


def test_auto_clipping_goes_on_over_daemons_and_from_a_checkpoint_with_norms_that_are_not_finite(
    tmp_path: Path,
) -> None:
    with Lives(tmp_path) as lives:
        whole_run = AnyNorm(lives.address, "whole", 0, "stats", AUTO, 1)
        for step in range(120):
            whole_run.step(step)
        disturbed = AnyNorm(lives.address, "disturbed", 0, "stats", AUTO, 1)
        for step in range(90):
            if step in (3, 31, 70):  # within the warm-up, and with a NaN in the window
                lives.end(signal.SIGKILL)
            disturbed.step(step)
        resumed = AnyNorm(lives.address, "resumed", 0, "stats", AUTO, 1)
        resumed.grads.load_state_dict(disturbed.grads.state_dict())
        for step in range(90, 120):
            resumed.step(step)
    np.testing.assert_equal([*disturbed.record, *resumed.record], whole_run.record)
    thresholds = [threshold for threshold, *_ in whole_run.record]
    assert len(set(thresholds)) > 20
    assert thresholds[30] == math.inf, "the NaN of step 20 counts"


def test_a_checkpoint_right_after_a_restart_is_that_of_before(tmp_path: Path) -> None:
    with Lives(tmp_path) as lives:
        ranks = start(lives.address, "saved", "arena")
        whole(on_all(range(WORLD), lambda rank: [ranks[rank].step(step) for step in range(60)]))
        before = ranks[0].grads.state_dict()
        lives.end(signal.SIGKILL)
        assert whole(on_all(range(WORLD), lambda rank: ranks[rank].grads.state_dict())) == [before, before]
        whole(on_all(range(WORLD), lambda rank: ranks[rank].step(60)))
        expected = undisturbed(lives.address, "arena")
    assert ranks[0].record == ranks[1].record == expected[:61]


def test_a_checkpoint_between_the_halves_of_a_step_leaves_it_half_done(tmp_path: Path) -> None:
    with Lives(tmp_path) as lives:
        ranks = start(lives.address, "halves", "stats")
        whole(on_all(range(WORLD), lambda rank: [ranks[rank].step(step) for step in range(20)]))
        before = ranks[0].grads.state_dict()
        for rank in ranks:
            rank.grads.write("a", Row.of([norm_of(20)]))
        measured = whole(on_all(range(WORLD), lambda rank: ranks[rank].grads.compute_norm()))
        lives.end(signal.SIGKILL)
        assert whole(on_all(range(WORLD), lambda rank: ranks[rank].grads.state_dict())) == [before, before]
        ended = whole(on_all(range(WORLD), lambda rank: ranks[rank].grads.apply_clip()))
        assert [report.norm for report in ended] == [report.norm for report in measured]
        assert {report.step for report in ended} == {20}
        assert ranks[0].grads.state_dict() != before


def test_what_is_remembered_survives_a_daemon_and_a_declaration(tmp_path: Path) -> None:
    with Lives(tmp_path) as lives:
        ranks = start(lives.address, "anew", "arena")
        whole(on_all(range(WORLD), lambda rank: [ranks[rank].step(step) for step in range(60)]))
        lives.end(signal.SIGKILL)

        def declare_anew(rank: int) -> None:
            try:
                ranks[rank].declare()
            except ConnectionLost:  # this call noticed the restart
                ranks[rank].declare()

        whole(on_all(range(WORLD), declare_anew))
        whole(on_all(range(WORLD), lambda rank: [ranks[rank].step(step) for step in range(60, 80)]))
        expected = undisturbed(lives.address, "arena")
    assert ranks[0].record == ranks[1].record == expected[:80]


@pytest.mark.parametrize("data_path", ["arena", "stats"])
def test_a_watcher_that_is_added_before_the_daemon_ends_costs_the_others_nothing(
    data_path: str, tmp_path: Path
) -> None:
    with Lives(tmp_path) as lives:
        clip = Clip.percentile(ceiling=None, percentile=90, window=50, warmup=10)
        rank = Rank(lives.address, "one", 0, data_path, clip=clip, world_size=1)
        plain = Rank(lives.address, "two", 0, data_path, world_size=1)
        for step in range(20):
            rank.step(step)
            plain.step(step)
        rank.clip = CLIP
        rank.declare()
        lives.end(signal.SIGKILL)
        rank.step(20)
        plain.step(20)
        assert rank.record[-1][0] == plain.record[-1][0] < float("inf")


def test_a_state_that_does_not_fit_is_refused_and_training_goes_on(tmp_path: Path) -> None:
    with Lives(tmp_path) as lives:
        ranks = start(lives.address, "one", "arena")
        whole(on_all(range(WORLD), lambda rank: [ranks[rank].step(step) for step in range(20)]))
        state = ranks[0].grads.state_dict()
        wider = Clip.percentile(ceiling=None, percentile=90, window=60, warmup=10, watch=(ZScore(),))
        others = whole(on_all(range(WORLD), lambda rank: Rank(lives.address, "other", rank, "arena", wider)))
        for result in on_all(range(WORLD), lambda rank: others[rank].grads.load_state_dict(state)):
            assert isinstance(result, InvalidParams), result
            assert "window 50" in str(result)
            assert "window 60" in str(result)
        whole(on_all(range(WORLD), lambda rank: others[rank].step(0)))

        damaged = dict(state, policies=state["policies"][:-2] + ("00" if state["policies"][-2:] != "00" else "11"))
        assert all(
            isinstance(e, InvalidParams)
            for e in on_all(range(WORLD), lambda r: ranks[r].grads.load_state_dict(damaged))
        )
        assert all(
            isinstance(e, UsageError)
            for e in on_all(range(WORLD), lambda r: ranks[r].grads.load_state_dict({"policies": ""}))
        )

        for rank in ranks:
            rank.grads.ready("a")
            with pytest.raises(UsageError, match="between two steps"):
                rank.grads.load_state_dict(state)
        whole(on_all(range(WORLD), lambda rank: ranks[rank].grads.finish(step=20)))

        later = (whole(on_all(range(WORLD), lambda rank: ranks[rank].step(21))), ranks[0].grads.state_dict())[1]
        for result in on_all(range(WORLD), lambda rank: ranks[rank].grads.load_state_dict((state, later)[rank])):
            assert isinstance(result, StepMismatch), result
        assert ranks[0].grads.state_dict() == later
        whole(on_all(range(WORLD), lambda rank: ranks[rank].step(22)))
        assert ranks[0].record == ranks[1].record


def test_a_torch_checkpoint_holds_it(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    with Lives(tmp_path) as lives:
        first = Rank(lives.address, "saves", 0, "arena", world_size=1)
        for step in range(40):
            first.step(step)
        checkpoint.save({"gradsync": first.grads}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        first.step(40)
        second = Rank(lives.address, "loads", 0, "arena", world_size=1)
        checkpoint.load({"gradsync": second.grads}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        second.step(40)
    assert second.record == first.record[40:]
