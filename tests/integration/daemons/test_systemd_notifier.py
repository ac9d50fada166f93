"""What the daemon tells the service manager that started it: the datagrams of sd_notify."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, Daemon


@pytest.fixture(params=["a file", "a name without a file"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    path = str(tmp_path / "notify")
    bound, named = (path, path) if request.param == "a file" else (f"\0{path}", f"@{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(bound)
        listening.settimeout(DEADLINE_S)
        yield listening, named


def told(listening: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in listening.recv(4096).decode().splitlines())


def test_it_is_told_of_the_start_of_every_half_of_its_time_and_of_the_stop(manager: tuple[socket.socket, str]) -> None:
    listening, named = manager
    with Daemon(before=("env", f"NOTIFY_SOCKET={named}", "WATCHDOG_USEC=40000")) as daemon:
        assert told(listening) == {"READY": "1", "STATUS": f"serving at {daemon.socket}"}
        for _ in range(3):
            assert told(listening) == {"WATCHDOG": "1"}
        daemon.process.send_signal(signal.SIGTERM)
        while (said := told(listening)) == {"WATCHDOG": "1"}:
            pass
        assert said == {"STOPPING": "1", "STATUS": "draining"}
        assert daemon.process.wait(DEADLINE_S) == 0


def test_a_loop_that_hangs_is_not_said_to_turn(manager: tuple[socket.socket, str]) -> None:
    listening, named = manager
    with Daemon(before=("env", f"NOTIFY_SOCKET={named}", "WATCHDOG_USEC=40000")) as daemon:
        told(listening)
        told(listening)
        daemon.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
        listening.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # what was told before
                told(listening)
        listening.settimeout(0.2)  # ten times as long as it takes to tell again
        with pytest.raises(TimeoutError):
            told(listening)
        daemon.process.send_signal(signal.SIGCONT)
        listening.settimeout(DEADLINE_S)
        assert told(listening) == {"WATCHDOG": "1"}


@pytest.mark.parametrize("other", ["WATCHDOG_PID=1", "WATCHDOG_USEC=", "WATCHDOG_USEC=never", "WATCHDOG_USEC=-1"])
def test_a_watchdog_of_another_process_hears_nothing(tmp_path: Path, other: str) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(DEADLINE_S)
        with Daemon(before=("env", f"NOTIFY_SOCKET={path}", "WATCHDOG_USEC=1000", other)) as daemon:
            assert told(listening)["READY"] == "1"
            assert daemon.terminate() == 0
            assert told(listening)["STOPPING"] == "1"


@pytest.mark.parametrize("named", ["vsock:2:1234", "", "x" * 200, "/nobody/listens"])
def test_a_manager_that_cannot_be_told_keeps_nothing_from_being_served(named: str) -> None:
    with Daemon(before=("env", f"NOTIFY_SOCKET={named}", "WATCHDOG_USEC=1000")) as daemon:
        assert daemon.terminate() == 0
