"""Rank 1 is killed, stopped, or forks, in every state a rank can be in, twenty times each in one daemon: rank 0 is told
who, or not disturbed, and the next step is right on both. Then the daemon has what it had."""

from __future__ import annotations

import contextlib
import secrets
import select
from collections.abc import Iterator
from typing import Any

import pytest
from daemon import TIMES, Daemon
from holdings import becomes, descriptors, metric, threads
from rank_states import BEFORE_DECLARED, NAMES, NUMEL, OPTIONS, STATES, WAITS_IN, Other, brought, reduced
from raw import REPLICATED, RawRank, declare_all

SOON_MS = 40  # a deadline that is meant to run out


@contextlib.contextmanager
def daemon_that_keeps_nothing() -> Iterator[Daemon]:
    """A daemon that has afterwards the descriptors and threads that it had after its first job."""
    with Daemon(*OPTIONS) as daemon:
        pid = daemon.process.pid
        fds = descriptors(pid)
        with RawRank(daemon.socket, "warm", 0, 1) as rank:
            declare_all([rank], NAMES, NUMEL)
            assert "norm" in rank.finished(rank.ask_finish(0))
        becomes(lambda: descriptors(pid), fds)
        count = threads(pid)
        yield daemon
        becomes(lambda: descriptors(pid), fds)
        becomes(lambda: threads(pid), count)


def ask(rank: RawRank, state: str, **more: int) -> int:
    """What rank 0 calls next, without waiting for the answer; where it has declared, `more` may be given."""
    if state in BEFORE_DECLARED:
        return rank.ask_declare(NAMES, NUMEL)
    if state == "half":
        return rank.ask("clip.apply", epoch=rank.epoch, attempt=rank.attempt, step=1, **more)
    return rank.ask_finish(1, **more)


def assert_all_are(rank: RawRank, *wanted: float) -> None:
    """Each tensor has one of these in all of its elements."""
    for offset in rank.declaration["offsets"]:
        found = set(rank.values[offset // 4 : offset // 4 + NUMEL])
        assert len(found) == 1, found
        assert found <= set(wanted)


def assert_done(rank: RawRank, number: int, step: int) -> None:
    report = rank.finished(number)
    assert report.get("step") == step, report
    assert_all_are(rank, reduced(step))


def assert_a_step(rank: RawRank, other: Other, step: int) -> None:
    """One that nothing happened in, right on both."""
    rank.fill(brought(0, step))
    other.ask("step")
    assert_done(rank, rank.ask_finish(step), step)
    assert other.told() == reduced(step)


def assert_names_rank_1(error: Any, kind: str) -> None:
    assert "data" in error, error
    assert error["data"]["kind"] == kind, error
    assert error["data"]["ranks"] == [1]
    assert "rank 1" in error["message"]


@pytest.mark.parametrize("state", STATES)
def test_a_rank_killed_in_any_state_is_named_and_replaced(state: str) -> None:
    step = 0 if state in BEFORE_DECLARED else 1
    with daemon_that_keeps_nothing() as daemon:
        for time in range(TIMES):
            job = secrets.token_hex(4)
            with RawRank(daemon.socket, job, 0, 2) as rank, Other(daemon.socket) as other:
                other.enter(rank, job, state)
                # Rank 0 is in its call already, or makes it afterwards; where rank 1 waits for that call, afterwards.
                asked = ask(rank, state) if time % 2 == 0 and state not in WAITS_IN else None
                other.kill()
                if asked is None:
                    asked = ask(rank, state)
                if state not in BEFORE_DECLARED:
                    assert_names_rank_1(rank.finished(asked), "rank_lost")
                    assert_all_are(rank, brought(0, step), reduced(step))
                with RawRank(daemon.socket, job, 1, 2) as heir:
                    declared = heir.ask_declare(NAMES, NUMEL)
                    if state in BEFORE_DECLARED:  # nothing is lost yet: who takes its place is waited for
                        rank.declared(asked)
                    heir.declared(declared)
                    for one in (rank, heir):
                        one.fill(brought(one.rank, step))
                    ends = [(one, one.ask_finish(step)) for one in (rank, heir)]
                    for one, number in ends:
                        assert_done(one, number, step)


def declared_in_vain(rank: RawRank) -> Any:
    """The error of a declaration that the other does not follow."""
    tensor = {"shape": [NUMEL], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
    tensors = [{"name": name, **tensor} for name in NAMES]
    rank.allocate(len(NAMES) * NUMEL * 4)
    return rank.error("gradients.declare", buffer=rank.buffer, tensors=tensors, timeout_ms=SOON_MS)


def while_stopped(rank: RawRank, state: str) -> int | None:
    """What rank 0 does and is told; the number of its call where that waits on."""
    if state in ("connected", "attached"):
        assert_names_rank_1(declared_in_vain(rank), "declare_timeout")
        return ask(rank, state)
    if state == "finish":  # all that is needed of rank 1 is there
        assert_done(rank, ask(rank, state), 1)
        return None
    if state == "paused":
        asked = ask(rank, state, timeout_ms=SOON_MS)
        assert not select.select([rank.socket], [], [], 2.5 * SOON_MS / 1000)[0], "the deadline ran out in a pause"
        return asked
    if state == "declaring":
        rank.declared(ask(rank, state))
        rank.fill(brought(0, 0))
        asked = rank.ask_finish(0, timeout_ms=SOON_MS)
    else:
        asked = ask(rank, state, timeout_ms=SOON_MS)
    assert_names_rank_1(rank.finished(asked), "step_timeout")
    return None


@contextlib.contextmanager
def both(daemon: Daemon, other: Other, state: str) -> Iterator[RawRank]:
    """Rank 0 of a new job in which the other is in that state; both leave it at the end."""
    job = secrets.token_hex(4)
    with RawRank(daemon.socket, job, 0, 2) as rank:
        other.enter(rank, job, state)
        yield rank
        other.ask("leave")
        assert other.told() is None


def assert_goes_on(rank: RawRank, other: Other, state: str, waiting: int | None) -> int:
    """The other, told to go on, completes its step with rank 0, which is in the call `waiting` already or makes its
    own. The step that comes next."""
    step = 0 if state in BEFORE_DECLARED else 1
    if state in BEFORE_DECLARED:
        rank.declared(ask(rank, state) if waiting is None else waiting)
        rank.fill(brought(0, 0))
        waiting = rank.ask_finish(0)
    assert_done(rank, ask(rank, state) if waiting is None else waiting, step)
    assert other.told() == reduced(step)
    return step + 1


@pytest.mark.parametrize("state", STATES)
def test_a_rank_stopped_in_any_state_is_named_or_disturbs_nobody_and_goes_on(state: str) -> None:
    with daemon_that_keeps_nothing() as daemon, Other(daemon.socket) as other:
        for _ in range(TIMES):
            with both(daemon, other, state) as rank:
                other.stop()
                waiting = while_stopped(rank, state)
                other.ask("go_on")
                other.go_on()
                if waiting is not None:
                    step = assert_goes_on(rank, other, state, waiting)
                elif state == "finish":
                    assert other.told() == reduced(1)
                    step = 2
                else:  # rank 0 gave up: so is the other told, once
                    assert other.told() == "step_timeout"
                    step = 0 if state in BEFORE_DECLARED else 1
                assert_a_step(rank, other, step)


def connections_of_a_round(daemon: Daemon, other: Other, state: str, child: str | None) -> float:
    """How many the daemon accepted while the other, with such a child, went on from that state."""
    before = metric(daemon, "gradsync_connections_accepted_total")
    with both(daemon, other, state) as rank:
        if child is not None:
            other.ask("fork", child == "lingers")
            assert other.told(), "the child's client is not lost"
        other.ask("go_on")
        step = assert_goes_on(rank, other, state, None)
        assert_a_step(rank, other, step)
        if child == "lingers":
            other.ask("release")
            assert other.told() is None
            assert_a_step(rank, other, step + 1)
        assert other.seat(rank)["pid"] == other.pid
    return metric(daemon, "gradsync_connections_accepted_total") - before


@pytest.mark.parametrize("child", ["ends", "lingers"])
@pytest.mark.parametrize("state", STATES)
def test_a_rank_that_forks_in_any_state_goes_on_undisturbed(state: str, child: str) -> None:
    with daemon_that_keeps_nothing() as daemon, Other(daemon.socket) as other:
        usual = connections_of_a_round(daemon, other, state, None)
        for _ in range(TIMES):
            # A parent whose connection was closed would come back by itself, unnoticed.
            assert connections_of_a_round(daemon, other, state, child) == usual
