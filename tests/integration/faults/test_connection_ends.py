"""Connections that end badly, or begin badly: the daemon says why, and nothing of them stays."""

from __future__ import annotations

import socket

import pytest
from daemon import Daemon
from floods import MIB
from holdings import becomes, metric
from raw import BINARY_FRAME, UPGRADE, RawClient, connected, frame


def connections_open(daemon: Daemon) -> int:
    return int(metric(daemon, "gradsync_connections"))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"x", BINARY_FRAME) + frame(b"{}", 5), 1003),  # two reasons to close, in one packet
        (frame(b"x", BINARY_FRAME) + frame(b"{}", 0), 1003),
        (frame(b" " * (MIB + 1)) + frame(b"{}", masked=False), 1009),
        (frame(b"{}"), 0),
        (frame(b"{", fin=False), 0),
    ],
    ids=["binary, wrong", "binary, continued", "large, unmasked", "good", "half"],
)
def test_whatever_a_connection_ends_with_nothing_of_it_stays(sent: bytes, code: int) -> None:
    with Daemon() as daemon:
        health = connections_open(daemon)
        for _ in range(20):
            with RawClient(daemon.socket) as client:
                client.send(sent)
                client.socket.shutdown(socket.SHUT_WR)
                assert client.closed().code == code
        becomes(lambda: connections_open(daemon), health)


def test_an_upgrade_may_have_long_headers_and_frames_that_come_along_are_refused() -> None:
    with Daemon() as daemon:
        for head, rest, says in (
            (UPGRADE[:-2] + b"Cookie: " + b"c" * 15_000 + b"\r\n\r\n", b"", "101 Switching Protocols"),
            (UPGRADE, frame(b"{}"), "8 bytes came along with the upgrade request; send frames after its answer"),
        ):
            with connected(daemon.socket) as raw:
                raw.sendall(head + rest)
                heard = b""
                while says.encode() not in heard:
                    more = raw.recv(65536)
                    assert more, heard
                    heard += more
