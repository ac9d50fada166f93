"""Many ranks hold good pages of a declaration whose last page never comes: the daemon names the limit, others declare
as ever, and the memory comes back."""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
from typing import Any

import floods
import pytest
from daemon import DEADLINE_S, Daemon
from holdings import becomes, metric, resident_kb
from raw import RawRank, declare_all, frame

MIB_KB = 1024
PAGES = 26  # of 7,500 tensors: nearly as many as one declaration may have
RANKS = 40


def page_of(rank: RawRank, page: int) -> Any:
    head = f'{{"jsonrpc": "2.0", "id": {1000 + page}, "method": "gradients.declare", "params": {{"last": false, '
    head += f'"buffer": {rank.buffer}, "page": {page}, "tensors": '
    rank.send(frame(head.encode() + floods.tensors() + b"}}"))
    return rank.answer(1000 + page)


def flood(address: str, stack: contextlib.ExitStack) -> tuple[Any, int]:
    """Until one is refused: its error, and how many pages were taken."""
    taken = 0
    for _ in range(RANKS):
        rank = stack.enter_context(RawRank(address, secrets.token_hex(8), 0, 2))
        rank.allocate(64)
        for page in range(PAGES):
            answer = page_of(rank, page)
            if "error" in answer:
                return answer["error"], taken
            taken += 1
    raise AssertionError(f"{taken} pages were taken")


def declares_and_steps(address: str, pipe: Any) -> None:
    with RawRank(address, "good", 0, 1) as rank:
        declare_all([rank], ["w"], 100)
        rank.fill(1.0)
        pipe.send(rank.finished(rank.ask_finish(0))["step"])


@pytest.mark.long
def test_what_is_half_declared_has_a_limit_and_goes_with_its_ranks() -> None:
    processes = multiprocessing.get_context("fork")
    with Daemon() as daemon:
        pid = daemon.process.pid
        idle = int(metric(daemon, "gradsync_connections"))
        held: list[int] = []
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                error, taken = flood(daemon.socket, stack)
                assert taken > 20
                assert error["data"]["kind"] == "limit_exceeded"
                assert "declarations of process" in error["message"]
                assert "at most 512.0 MiB" in error["message"]
                assert "until its rank leaves" in error["data"]["hint"]
                near, far = processes.Pipe()
                other = processes.Process(target=declares_and_steps, args=(daemon.socket, far))
                other.start()
                assert near.poll(DEADLINE_S), "the good rank says nothing"
                assert near.recv() == 0
                other.join(DEADLINE_S)
            becomes(lambda: int(metric(daemon, "gradsync_connections")), idle)
            held.append(resident_kb(pid))
        assert held[1] - held[0] < 32 * MIB_KB, held
