"""What clients leave unread does not make the daemon grow without end."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest
from attacks import declare, subscribe_and_do_not_read
from daemon import DEADLINE_S, get
from hostile import Daemon
from raw import REPLICATED, RawClient, RawRank, frame, request
from victim import Victim, lasts

# ASan keeps what was freed, and its daemon reads too slowly to be filled.
pytestmark = pytest.mark.release
MIB = 1024


def most_resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def slow_readers(daemon: Daemon) -> int:
    status, text = get(daemon.health(), "/metrics")  # the unix socket counts it to what this process sends
    found = re.search(r"^gradsync_slow_readers_total (\d+)", text, re.MULTILINE)
    assert found, (status, text[:500])
    return int(found[1])


@pytest.mark.long
def test_answers_that_nobody_reads_end_connections_and_not_the_daemon() -> None:
    question = frame(request(1, "rpc.discover")) * 50
    with Daemon() as daemon, Victim(daemon.socket) as victim, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(daemon.socket, initialize=True)) for _ in range(120)]
        for client in clients:
            client.socket.setblocking(False)
        begin = time.monotonic()
        while slow_readers(daemon) == 0 or lasts(begin):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.socket.send(question)
            assert lasts(begin) or time.monotonic() < begin + DEADLINE_S, "nobody was ended"
        assert most_resident_kb(daemon.process.pid) < 400 * MIB
        victim.steps_on()


def test_events_that_nobody_reads_are_dropped() -> None:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(daemon.socket, initialize=True)) for _ in range(100)]
        for client in clients:
            subscribe_and_do_not_read(client)
        with Victim(daemon.socket) as victim:
            begin = time.monotonic()
            victim.steps_on(1000)  # more than the 256 events that a subscription keeps
            while lasts(begin):
                victim.steps_on(1000)
        assert most_resident_kb(daemon.process.pid) < 400 * MIB


def test_reports_of_many_long_layers_are_forgotten_in_time() -> None:
    layers, page = 20_000, 2_000
    with Daemon() as daemon, RawRank(daemon.socket, "layers", 0, 1) as rank:
        rank.allocate(layers * 64)
        rank.numel = 1
        for first in range(0, layers, page):
            tensors = [
                {
                    "name": f"t{index}",
                    "shape": [1],
                    "dtype": "float32",
                    "mesh": "m",
                    "placements": REPLICATED,
                    "layer": f"{index:300}",
                }
                for index in range(first, first + page)
            ]
            last = first + page == layers
            number = rank.ask("gradients.declare", buffer=rank.buffer, page=first // page, tensors=tensors, last=last)
            if not last:
                assert "result" in rank.answer(number)
        rank.declared(number)
        before = most_resident_kb(daemon.process.pid)
        for step in range(60):
            rank.finished(rank.ask_finish(step))
        # Each report takes 0.5 MiB, and 7 MiB where it has the names of the layers once more.
        assert most_resident_kb(daemon.process.pid) - before < 40 * MIB


def test_jobs_that_take_no_step_have_no_memory_for_reports() -> None:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        before = most_resident_kb(daemon.process.pid)
        for job in range(60):
            declare(
                stack.enter_context(RawRank(daemon.socket, f"idle-{job}", 0, 1)), [f"t{index}" for index in range(12)]
            )
        assert most_resident_kb(daemon.process.pid) - before < 60 * MIB
