"""A token for memory that is handed back is as good as one for memory that is given out: once, and for one process."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import secrets
import socket
from typing import Any

from daemon import DEADLINE_S, Daemon
from raw import RawRank, connected
from walkers import undisturbed

BYTES = 4096
SEAL, SHRINK, GROW = 1, 2, 4  # F_SEAL_*, which Python 3.10 does not name
ADD_SEALS = 1033


def memory(size: int = BYTES, seals: int = SEAL | SHRINK | GROW) -> int:
    fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd


def hand_back(address: str, token: str, fds: list[int]) -> Any:
    """What the second socket answers to a token with descriptors."""
    with connected(address.replace(".sock", ".fd.sock")) as second:
        socket.send_fds(second, [token.encode() + b"\n"], fds)
        data = b""
        while not data.endswith(b"\n"):
            more, given, _, _ = socket.recv_fds(second, 4096, 4)
            assert more, data
            assert not given
            data += more
    return json.loads(data)


def kind_of(answer: Any) -> str:
    return str(answer["error"]["data"]["kind"])


def as_another_process(address: str, token: str, pipe: Any) -> None:
    pipe.send(hand_back(address, token, [memory()]))


def as_nobody(address: str, token: str, pipe: Any) -> None:
    os.setgid(65534)
    os.setuid(65534)
    pipe.send(hand_back(address, token, [memory()]))


def test_a_token_of_adopt_is_good_once_and_for_its_owner_only() -> None:
    processes = multiprocessing.get_context("fork")
    with Daemon("--server-socket-mode", "666") as daemon, undisturbed(daemon):
        os.chmod(os.path.dirname(daemon.socket), 0o755)
        thieves = [as_another_process, as_nobody] if os.geteuid() == 0 else [as_another_process]
        ours = memory()
        with RawRank(daemon.socket, "victim", 0, 1) as rank:
            for _ in range(100):
                assert kind_of(hand_back(daemon.socket, secrets.token_hex(16), [ours])) == "bad_token"
            for thief in thieves:
                given = rank.call("buffers.adopt", bytes=BYTES, device="cpu")
                near, far = processes.Pipe()
                other = processes.Process(target=thief, args=(daemon.socket, given["token"], far))
                other.start()
                assert near.poll(DEADLINE_S), "the thief says nothing"
                assert kind_of(near.recv()) == "bad_token"
                other.join(DEADLINE_S)
                # What a thief tried is still the owner's, once.
                assert hand_back(daemon.socket, given["token"], [ours]) == {"bytes": BYTES}
                assert kind_of(hand_back(daemon.socket, given["token"], [ours])) == "bad_token"
                rank.call("buffers.release", buffer=given["buffer"])
        os.close(ours)


def test_memory_that_is_not_as_it_was_given_out_is_refused_and_does_not_stay() -> None:
    wrong = [memory(BYTES, SHRINK | GROW), memory(BYTES // 2), os.open("/dev/null", os.O_RDWR), *os.pipe()]
    ours = memory()
    with Daemon() as daemon, undisturbed(daemon), RawRank(daemon.socket, "job", 0, 1) as rank:
        for fds in [[], *([fd] for fd in wrong), [*wrong, ours]]:
            for _ in range(20):
                given = rank.call("buffers.adopt", bytes=BYTES, device="cpu")
                answer = hand_back(daemon.socket, given["token"], fds)
                assert "error" in answer, answer
                assert answer["error"]["message"]
                assert rank.answered("buffers.release", buffer=given["buffer"])["error"]["data"]["kind"]
        given = rank.call("buffers.adopt", bytes=BYTES, device="cpu")
        assert hand_back(daemon.socket, given["token"], [ours, *wrong]) == {"bytes": BYTES}  # the first counts
    for fd in (*wrong, ours):
        os.close(fd)
