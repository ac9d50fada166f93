"""What clients leave unread does not make the daemon grow without end."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from attacks import subscribe_and_do_not_read
from daemon import DEADLINE_S, get
from hostile import Daemon
from raw import RawClient, frame, request
from victim import Victim, lasts

MIB = 1024


def most_resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def slow_readers(daemon: Daemon) -> int:
    status, text = get(daemon.health(), "/metrics")  # the unix socket counts it to what this process sends
    found = re.search(r"^gradsync_slow_readers_total (\d+)", text, re.MULTILINE)
    assert found, (status, text[:500])
    return int(found[1])


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


def test_metrics_are_rendered_once_in_a_second_for_everybody() -> None:
    with Daemon() as daemon:
        begin = time.monotonic()
        texts = [get(daemon.health(), "/metrics")[1] for _ in range(20)]
        seconds = time.monotonic() - begin
        assert len(set(texts)) <= 2 + seconds  # each request changes a counter of them


def test_the_health_port_answers_to_no_name_of_strangers() -> None:
    with Daemon() as daemon:
        connection = daemon.health()
        connection.putrequest("GET", "/metrics", skip_host=True)
        connection.putheader("Host", "rebound.example:9477")
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 421
        assert "rebound.example" in response.read().decode()
        assert get(daemon.health(), "/livez")[0] == 200
