"""Probes are answered where strangers at the health port hold all descriptors that the daemon may have."""

from __future__ import annotations

import contextlib
import resource
import socket

from daemon import DEADLINE_S, Daemon, get

DESCRIPTORS = 64
STRANGERS = 100


def test_a_probe_takes_the_place_of_a_stranger_at_the_health_port() -> None:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        host, port = daemon.fields["health"].rsplit(":", 1)
        for _ in range(STRANGERS):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))
        for _ in range(3):
            assert get(daemon.health(), "/livez")[0] == 200
