"""What floods are made of: each kind of garbage as a function that sends one round of it and says how many frames that
was. What the daemon has to say about it is checked here too, so that a flood is known to arrive."""

from __future__ import annotations

import functools
import json
import secrets
import socket
from collections.abc import Callable

from daemon import UnixHttp, get
from raw import BINARY_FRAME, PING, PONG, TEXT, RawClient, RawRank, connected, fetch, frame, header

KIB, MIB = 1024, 1024 * 1024


def answered(address: str, payload: bytes, kind: str, count: int = 500) -> int:
    """Text frames that are read and answered with an error of this kind, a few hundred in flight."""
    batch = frame(payload) * min(count, 250)
    with RawClient(address) as client:
        for _ in range(count // min(count, 250)):
            client.send(batch)
            for _ in range(min(count, 250)):
                found = client.message()["error"]["data"]["kind"]
                assert found == kind, found
    return count


def refused(address: str, garbage: bytes, code: int, count: int = 2000) -> int:
    """The first of these frames ends the connection; the others were sent with it."""
    with RawClient(address) as client:
        client.send(garbage)
        end = client.closed()
        assert end.code == code, end
    return count


def garbage_text(address: str) -> int:
    return answered(address, b"{[garbage" + secrets.token_hex(20).encode(), "parse_error")


def not_a_request(address: str) -> int:
    return answered(address, b'{"jsonrpc": "2.0", "id": {}, "method": 7}', "invalid_request")


def empty_text(address: str) -> int:
    return answered(address, b"", "parse_error")


def large_text(address: str) -> int:
    """As much JSON as a message may hold."""
    many = (b"1," * (MIB // 2))[:-40] + b"1"
    return answered(address, b'{"jsonrpc": "2.0", "x": [' + many + b"]}", "invalid_request", count=2)


def deep_text(address: str) -> int:
    return answered(address, b"[" * 10_000, "parse_error", count=250)


def random_binary(address: str) -> int:
    return refused(address, b"".join(frame(secrets.token_bytes(16), BINARY_FRAME) for _ in range(2000)), 1003)


def invalid_utf8(address: str) -> int:
    return refused(address, frame(b"\xff\xfe\xc0\x80") * 2000, 1007)


def unmasked(address: str) -> int:
    return refused(address, frame(b"{}", masked=False) * 2000, 1002)


def reserved_bits(address: str) -> int:
    return refused(address, frame(b"{}", reserved=4) * 2000, 1002)


def unknown_opcode(address: str) -> int:
    return refused(address, frame(b"{}", 5) * 2000, 1002)


def long_control(address: str) -> int:
    return refused(address, frame(bytes(126), PING) * 2000, 1002)


def continues_nothing(address: str) -> int:
    return refused(address, frame(b"{}", 0) * 2000, 1002)


def random_bytes(address: str) -> int:
    """After the upgrade no frame at all; whatever it is read as, the connection ends or waits for more of it."""
    with RawClient(address) as client:
        client.send(secrets.token_bytes(16 * KIB))
        client.socket.shutdown(socket.SHUT_WR)
        client.closed()
    return 1000


def endless_fragments(address: str) -> int:
    """A message of one byte a fragment, which is left unfinished."""
    with RawClient(address) as client:
        client.send(frame(b"[", fin=False) + frame(b"1", 0, fin=False) * 4000)
        client.send(frame(b"still there", PING))
        assert client.frame() == (PONG, b"still there")
    return 4000


def pings(address: str) -> int:
    with RawClient(address) as client:
        client.send(frame(b"x" * 125, PING) * 1000 + frame(b"end", PING))
        while client.frame() != (PONG, b"end"):
            pass
    return 1000


def announced_too_long(address: str) -> int:
    """A message of 64 MiB by its header, of which a part comes."""
    return refused(address, header(64 * MIB) + bytes(2 * MIB), 1009, count=1)


def guessed_tokens(address: str) -> int:
    for _ in range(50):
        answer, fds = fetch(address, secrets.token_hex(16))
        assert answer["error"]["data"]["kind"] == "bad_token", answer
        assert not fds
    return 50


@functools.cache
def tensors() -> bytes:
    placed = [{"axes": ["dp"], "kind": "replicate"}]
    rest = {"shape": [4], "dtype": "float32", "mesh": "m", "placements": placed}
    return json.dumps([{"name": f"t{number}", **rest} for number in range(7500)]).encode()


def half_declared(address: str) -> int:
    """Good pages of a declaration, as large as a message, whose last page never comes."""
    with RawRank(address, secrets.token_hex(8), 0, 2) as rank:
        rank.allocate(64)
        for page in range(3):
            head = (
                f'{{"jsonrpc": "2.0", "id": {1000 + page}, "method": "gradients.declare", "params": {{"last": false, '
            )
            head += f'"buffer": {rank.buffer}, "page": {page}, "tensors": '
            rank.send(frame(head.encode() + tensors() + b"}}"))
            assert "result" in rank.answer(1000 + page)
    return 3


def pages(address: str) -> int:
    connection = UnixHttp(address)
    for _ in range(50):
        for page in ("/status", "/metrics", "/"):
            assert get(connection, page)[0] == 200
    connection.close()
    return 150


def connections(address: str) -> int:
    for _ in range(50):
        with connected(address) as raw:
            raw.sendall(frame(b"{}", TEXT))
    return 50


KINDS: list[Callable[[str], int]] = [
    garbage_text,
    not_a_request,
    empty_text,
    large_text,
    deep_text,
    random_binary,
    invalid_utf8,
    unmasked,
    reserved_bits,
    unknown_opcode,
    long_control,
    continues_nothing,
    random_bytes,
    endless_fragments,
    pings,
    announced_too_long,
    guessed_tokens,
    half_declared,
    pages,
    connections,
]
