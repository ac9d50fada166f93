"""What ranks do to each other, twenty times each: one that never calls ready, two that finish different steps, one that
is killed in its declaration, a daemon that is told to stop meanwhile. The others are told who and what, and go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES, Daemon, run_command
from raw import Closed, RawClient, RawRank, declare_all, frame, request

PROCESSES = multiprocessing.get_context("fork")  # at that moment this process has one thread, and no rank


def two(stack: contextlib.ExitStack, address: str) -> list[RawRank]:
    job = secrets.token_hex(4)
    ranks = [stack.enter_context(RawRank(address, job, rank, 2)) for rank in range(2)]
    declare_all(ranks, ["w", "v"], 100)
    return ranks


def assert_a_good_step(ranks: list[RawRank], step: int) -> None:
    for rank in ranks:
        rank.fill(step + rank.rank)
    for rank, number in zip(ranks, [rank.ask_finish(step) for rank in ranks], strict=True):
        report = rank.finished(number)
        assert report.get("step") == step, report
        assert rank.values[0] == 2 * step + 1


def test_a_rank_that_never_calls_ready_is_warned_of_and_then_named() -> None:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        ranks = two(stack, daemon.socket)
        watcher = stack.enter_context(RawClient(daemon.socket, initialize=True))
        watcher.call("events.subscribe", topics=["alert"])
        for step in range(TIMES):
            error = ranks[0].finished(ranks[0].ask_finish(2 * step, timeout_ms=60))
            assert error["data"]["kind"] == "step_timeout"
            assert error["data"]["ranks"] == [1]
            assert set(error["data"]["tensors"]) == {"w", "v"}
            assert "rank 1" in error["message"]
            alerts = [watcher.message()["params"]["event"] for _ in range(2)]
            assert [alert["kind"] for alert in alerts] == ["deadline_half", "step_timeout"]
            assert "rank 1" in alerts[0]["what"]
            ranks[1].attempt, ranks[1].epoch = ranks[0].attempt, ranks[0].epoch
            assert_a_good_step(ranks, 2 * step + 1)


def test_ranks_that_finish_different_steps_are_both_told_and_go_on() -> None:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        ranks = two(stack, daemon.socket)
        for step in range(TIMES):
            for rank in ranks:
                rank.fill(1.0)
            asked = [rank.ask_finish(1000 + step + rank.rank) for rank in ranks]
            for rank, number in zip(ranks, asked, strict=True):
                error = rank.finished(number)
                assert error["data"]["kind"] == "step_mismatch"
                assert str(1000 + step) in error["message"]
                assert str(1001 + step) in error["message"]
                assert rank.values[0] == 1.0  # nothing was reduced
            assert_a_good_step(ranks, step)


def doomed(address: str, job: str, pipe: Connection) -> None:
    """Rank 1, until it is killed in the middle of its declaration."""
    rank = RawRank(address, job, 1, 2)
    rank.allocate(4096)
    rank.send(frame(request(99, "gradients.declare", buffer=rank.buffer, page=0, last=False, tensors=[]))[:40])
    pipe.send("declaring")
    signal.pause()


def test_a_rank_killed_while_it_says_its_declaration_is_replaced() -> None:
    with Daemon() as daemon:
        for _ in range(TIMES):
            job = secrets.token_hex(4)
            ours, theirs = PROCESSES.Pipe()
            other = PROCESSES.Process(target=doomed, args=(daemon.socket, job, theirs), daemon=True)
            other.start()
            with RawRank(daemon.socket, job, 0, 2) as rank:
                declared = rank.ask_declare(["w", "v"], 100)
                assert ours.poll(DEADLINE_S), "rank 1 says nothing"
                assert ours.recv() == "declaring"
                other.kill()
                other.join(DEADLINE_S)
                # Nothing is lost yet: who takes its place is waited for.
                with RawRank(daemon.socket, job, 1, 2) as heir:
                    heir.declared(heir.ask_declare(["w", "v"], 100))
                    rank.declared(declared)
                    assert_a_good_step([rank, heir], 0)


@pytest.mark.parametrize("finishing", [1, 2])
def test_a_daemon_told_to_stop_in_a_step_ends_well_and_gives_no_wrong_result(finishing: int) -> None:
    for _ in range(TIMES):
        with Daemon("--deadlines-drain-ms", "100") as daemon, contextlib.ExitStack() as stack:
            ranks = two(stack, daemon.socket)
            for rank in ranks:
                rank.fill(1.0 + rank.rank)
            asked = [(rank, rank.ask_finish(0)) for rank in ranks[:finishing]]
            daemon.process.send_signal(signal.SIGTERM)
            for rank, number in asked:
                with contextlib.suppress(Closed, ConnectionResetError):
                    answer = rank.finished(number)
                    if "norm" in answer:
                        assert finishing == 2
                        assert rank.values[0] == 3.0
            for rank in ranks:
                rank.socket.close()
            assert daemon.process.wait(DEADLINE_S) == 0


def test_a_full_run_folder_is_a_start_that_is_refused_with_its_reason(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=3", "none", str(tmp_path)], check=False
    ).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        with contextlib.suppress(OSError):
            for name in ("a", "b", "c", "d"):
                (tmp_path / name).write_bytes(b"")
        for _ in range(TIMES):
            done = run_command("serve", "--socket", str(tmp_path / "gradsync.sock"), "--health", "off")
            assert done.returncode in (69, 75, 78), done.stderr
            assert "No space left on device" in done.stderr
            assert str(tmp_path) in done.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
