"""What a client may not hand over: names that turn a terminal's text round, and memory that cannot be written."""

from __future__ import annotations

import fcntl
import os
import socket

import pytest
from hostile import Daemon
from raw import RawClient, RawRank, connected

SIZE = 4096
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.mark.parametrize("turning", ["\u202e", "\u2066", "\u200f", "\u061c"])
def test_a_name_that_turns_the_direction_of_text(turning: str) -> None:
    with Daemon() as daemon, RawClient(daemon.socket, initialize=True) as client:
        mesh = {"name": "m", "axes": [{"name": "dp", "size": 1}]}
        error = client.error("job.attach", job=f"a{turning}b", rank=0, world_size=1, meshes=[mesh])
        assert error["data"]["path"] == "job"
        assert turning not in error["message"]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR], ids=["for reading", "for writing"])
def test_memory_that_is_open_for_reading_only(flags: int) -> None:
    with Daemon() as daemon, RawRank(daemon.socket, "job", 0, 1) as rank:
        memory = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(memory, SIZE)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
        given = os.open(f"/proc/self/fd/{memory}", flags)
        token = rank.call("buffers.adopt", bytes=SIZE, device="cpu")["token"]
        with connected(daemon.socket.replace(".sock", ".fd.sock")) as stream:
            socket.send_fds(stream, [token.encode() + b"\n"], [given])
            answer = stream.recv(4096)
        os.close(given)
        os.close(memory)
        assert (b"not open for reading and writing" in answer) == (flags == os.O_RDONLY), answer
