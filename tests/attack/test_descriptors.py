"""Descriptors that a client passes along (SCM_RIGHTS) hold up nobody but that client, whatever closing them takes."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import pytest
from daemon import get
from hostile import Daemon, Lingering
from raw import RawClient, RawRank, connected, frame, request
from victim import Victim, lasts


@contextlib.contextmanager
def attacked() -> Iterator[tuple[Daemon, Victim, list[Lingering]]]:
    """Ends what it was attacked with, so that nothing of it outlives the test."""
    passed: list[Lingering] = []
    with Daemon() as daemon, Victim(daemon.socket) as victim:
        try:
            yield daemon, victim, passed
        finally:
            for one in passed:
                one.let_go()


def goes_on(daemon: Daemon, victim: Victim) -> None:
    victim.steps_on()
    assert get(daemon.health(), "/livez")[0] == 200


@pytest.mark.parametrize("upgraded", [False, True], ids=["before the upgrade", "after it"])
def test_one_that_is_sent_to_the_main_socket(upgraded: bool) -> None:
    with attacked() as (daemon, victim, passed):
        begin = time.monotonic()
        while len(passed) < 3 or lasts(begin):
            with contextlib.ExitStack() as stack:
                if upgraded:
                    stream = stack.enter_context(RawClient(daemon.socket)).socket
                else:
                    stream = stack.enter_context(connected(daemon.socket))
                passed.append(Lingering())
                passed[-1].pass_on(stream, frame(request(1, "rpc.discover")) if upgraded else b"GET / HTTP/1.1\r\n")
                goes_on(daemon, victim)


@pytest.mark.parametrize("line", [b"0" * 32 + b"\n", b"half a line"], ids=["with a token", "with half a line"])
def test_one_that_is_sent_to_the_fd_socket(line: bytes) -> None:
    with attacked() as (daemon, victim, passed):
        begin = time.monotonic()
        while len(passed) < 3 or lasts(begin):
            with connected(daemon.socket.replace(".sock", ".fd.sock")) as stream:
                passed.append(Lingering())
                assert passed[-1].pass_on(stream, line)
            goes_on(daemon, victim)


def test_one_that_is_handed_back_for_an_arena() -> None:
    with attacked() as (daemon, victim, passed), RawRank(daemon.socket, "hostile", 0, 1) as rank:
        for _ in range(3):
            token = rank.call("buffers.adopt", bytes=4096, device="cpu")["token"]
            with connected(daemon.socket.replace(".sock", ".fd.sock")) as stream:
                passed.append(Lingering())
                assert passed[-1].pass_on(stream, token.encode() + b"\n")
                assert b"invalid_params" in stream.recv(4096)
            goes_on(daemon, victim)


def test_one_of_a_uid_that_is_not_allowed() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with Daemon("--server-allowed-uids", "1", "--server-socket-mode", "0666") as daemon:
        os.chmod(os.path.dirname(daemon.socket), 0o755)
        with Victim(daemon.socket) as victim:
            passed: list[Lingering] = []
            try:
                for path in (daemon.socket, daemon.socket.replace(".sock", ".fd.sock")):
                    passed.append(Lingering())
                    os.seteuid(65534)
                    try:
                        stream = connected(path)
                    finally:
                        os.seteuid(0)
                    with stream:
                        passed[-1].pass_on(stream, b"GET / HTTP/1.1\r\n\r\n")
                        assert b"unauthorized" in stream.recv(4096)
                    goes_on(daemon, victim)
            finally:
                for one in passed:
                    one.let_go()


def test_one_that_waits_in_a_connection_nobody_accepted() -> None:
    """The daemon is stopped meanwhile, so that the connection ends before it is looked at."""
    with attacked() as (daemon, victim, passed):
        daemon.process.send_signal(19)
        try:
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(daemon.socket.replace(".sock", ".fd.sock"))
            passed.append(Lingering())
            passed[-1].pass_on(stream, b"x")
            stream.close()
        finally:
            daemon.process.send_signal(18)
        goes_on(daemon, victim)
