"""Connections of strangers and of one client leave places and descriptors for the others, and for probes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest
from daemon import BINARY, DEADLINE_S, clean_environment, get
from hostile import Daemon
from raw import RawClient, connected
from victim import Victim


def strangers(daemon: Daemon, stack: contextlib.ExitStack, number: int) -> None:
    host, port = daemon.fields["health"].rsplit(":", 1)
    for _ in range(number):
        stack.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))


def test_strangers_at_the_health_port_take_no_place_of_a_trainer() -> None:
    with Daemon("--limits-connections", "64") as daemon, contextlib.ExitStack() as stack:
        strangers(daemon, stack, 300)
        with Victim(daemon.socket) as victim:
            assert get(daemon.health(), "/livez")[0] == 200
            victim.steps_on()
        assert "gradsync_connections " in get(daemon.unix(), "/metrics")[1]


def test_one_process_leaves_places_for_others() -> None:
    with Daemon("--limits-connections", "16") as daemon, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(RawClient(daemon.socket))
        refused = stack.enter_context(connected(daemon.socket)).recv(4096).decode()
        assert refused.startswith("HTTP/1.1 503 "), refused
        assert f"process {os.getpid()} has 8 connections open, the limit is 8 ([limits] connections=16)" in refused
        with Victim(daemon.socket) as victim:
            victim.steps_on()


@pytest.mark.release  # without descriptors UBSan finds objects missing
def test_descriptors_are_kept_back_for_probes() -> None:
    with Daemon() as daemon, Victim(daemon.socket) as victim, contextlib.ExitStack() as stack:
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        answers = []
        for _ in range(100):
            client = stack.enter_context(connected(daemon.socket))
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(client.recv(4096))
        assert answers[0].startswith(b"HTTP/1.1 200"), answers[0]
        assert answers[-1].startswith(b"HTTP/1.1 503"), answers[-1]
        assert b"no file descriptors left: the limit is " in answers[-1]
        assert get(daemon.health(), "/livez")[0] == 200
        assert "process_open_fds" in get(daemon.health(), "/metrics")[1]
        victim.steps_on()


def soft_limit(daemon: Daemon) -> int:
    limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
    return int(next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3])


def test_the_soft_limit_of_descriptors_is_raised() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if most <= 128:
        pytest.skip("the hard limit is as low as the soft one")
    with Daemon() as daemon:
        assert soft_limit(daemon) >= most


def test_a_daemon_that_is_started_with_few_descriptors_answers_and_has_more() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= 64:
        pytest.skip("the hard limit is as low as the soft one")
    with Daemon(before=("sh", "-c", 'ulimit -Sn 64 && exec "$0" "$@"')) as daemon:
        assert get(daemon.health(), "/livez")[0] == 200
        assert soft_limit(daemon) > 64


def test_a_child_of_run_keeps_its_soft_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = [BINARY, "run", "--", "sh", "-c", "ulimit -Sn"]
    done = subprocess.run(
        asked, env=clean_environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.split()[-1] in (str(soft), "unlimited")
