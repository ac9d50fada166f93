"""Frames that the client reads and writes itself, beside the library that reads and writes all others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_websocket import Peer
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from gradsync import _websocket
from gradsync._frames import Seam, text_frame, whole_text

SIZES = [0, 1, 125, 126, 127, 200, 65535, 65536, 70000]


@pytest.mark.parametrize("size", SIZES)
def test_a_server_reads_what_is_written(size: int) -> None:
    server = ServerProtocol(state=State.OPEN)
    text = ("größe " * size)[:size]
    server.receive_data(text_frame(text))
    (frame,) = server.events_received()
    assert isinstance(frame, Frame)
    assert (frame.opcode, frame.fin, frame.data.decode()) == (Opcode.TEXT, True, text)
    server.receive_data(b"")
    assert server.parser_exc is None
    assert server.state is State.OPEN


@pytest.mark.parametrize("size", SIZES)
def test_a_whole_text_is_read_up_to_64_kib(size: int) -> None:
    data = Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)
    assert whole_text(data) == ("x" * size if 1 < size < 65536 else None)  # less than four bytes are the library's


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81",
        b"\x81\x05hell",
        b"\x81\x05hello!",
        b"\x81\x05hello\x81\x00",
        b"\x01\x05hello",  # not the last frame
        b"\x80\x05hello",  # not the first
        b"\x82\x05hello",
        b"\xc1\x05hello",  # compressed
        b"\x89\x05hello",
        b"\x81\x85\0\0\0\0hello",
        b"\x81\x7e\x00\x05hello",  # a length that would have fitted
        b"\x81\x7f\0\0\0\0\0\0\0\x05hello",
        b"\x81\xfe\x00\x80" + b"x" * 128,
        b"\x81\x02\xc3\x28",
        b"\x81\x03ab\xc3",
    ],
)
def test_all_else_is_the_librarys(data: bytes) -> None:
    assert whole_text(data) is None


UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
RESPONSE = Response(101, "Switching Protocols", {})  # type: ignore[arg-type]  # what it says does not matter
HELLO = Frame(Opcode.TEXT, b"hello")


def seam(*parsed: tuple[bytes, list[Frame | Response]]) -> bool:
    seam = Seam()
    for data, events in parsed:
        seam.parsed(data, [*events])
    return not seam.within


def test_a_seam_is_reached_when_every_byte_is_of_a_frame() -> None:
    data = HELLO.serialize(mask=False)
    assert seam((UPGRADE, [RESPONSE]))
    assert seam((UPGRADE, [RESPONSE]), (data * 2, [HELLO, HELLO]))
    assert not seam((UPGRADE, [RESPONSE]), (data[:1], []))
    assert not seam((UPGRADE, [RESPONSE]), (data + data[:3], [HELLO]))
    assert seam((UPGRADE, [RESPONSE]), (data + data[:3], [HELLO]), (data[3:], [HELLO]))


def test_an_upgrade_in_pieces_or_with_more_behind_it_is_no_seam() -> None:
    broken_off = Frame(Opcode.TEXT, b"abc\r\n\r\n").serialize(mask=False)[:-1] + b"\n"
    assert not seam((UPGRADE[:20], []), (UPGRADE[20:], [RESPONSE]))
    assert not seam((UPGRADE[:-1], []), (UPGRADE[-1:] + broken_off, [RESPONSE]))
    assert not seam((UPGRADE + broken_off, [RESPONSE]))
    assert not seam((UPGRADE + HELLO.serialize(mask=False), [RESPONSE, HELLO]))


def test_half_a_frame_behind_an_upgrade_in_pieces_is_counted_once() -> None:
    text = Frame(Opcode.TEXT, b"x" * 120 + b"\r\n\r\n" + HELLO.serialize(mask=False) + b"x" * 80)
    data = text.serialize(mask=False)
    middle = data.index(b"\r\n\r\n") + 4
    begun = ((UPGRADE[:-1], []), (UPGRADE[-1:] + data[:middle], [RESPONSE]))
    assert not seam(*begun)
    assert not seam(*begun, (data[middle:], [text]))
    within_another = data[: middle - len(UPGRADE[:-1])]
    assert not seam(*begun, (data[middle:], [text]), (within_another, []))


def test_a_frame_with_too_long_a_length_leaves_no_seam() -> None:
    assert not seam((UPGRADE, [RESPONSE]), (b"\x81\x7e\x00\x05hello", [HELLO]))


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope="module", autouse=True)
def _no_clock() -> Iterator[None]:
    """A peer that closes is waited for by the clock: not here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_websocket, "_CLOSE_S", 0.0)
        yield


def test_what_looks_like_a_frame_within_another_is_none(peer: Peer) -> None:
    text = "Á\x05hello"
    data = Frame(Opcode.TEXT, text.encode()).serialize(mask=False)
    assert whole_text(data[3:]) == "hello"
    for _ in range(2):
        peer.socket.sendall(data[:3])
        assert peer.websocket.receive() is None
        peer.socket.sendall(data[3:])
        assert peer.websocket.receive() == text


def test_no_text_comes_after_the_end(peer: Peer) -> None:
    peer.send(Frame(Opcode.CLOSE, (1001).to_bytes(2, "big")))
    assert peer.websocket.receive() is None
    peer.send(HELLO)
    assert peer.websocket.receive() is None


payloads = st.one_of(
    st.binary(max_size=4),
    st.text(max_size=40).map(str.encode),
    st.sampled_from([125, 126, 127, 300]).map(lambda size: b"x" * size),
    st.just(HELLO.serialize(mask=False)),  # a frame in a frame
    st.sampled_from([b"\xff", b"\xc3", b"ab\xe2\x82"]),
)
frames = st.one_of(
    st.builds(Frame, st.just(Opcode.TEXT), payloads),
    st.builds(Frame, st.just(Opcode.TEXT), payloads, fin=st.booleans()),
    st.builds(Frame, st.just(Opcode.CONT), payloads, fin=st.booleans()),
    st.builds(Frame, st.sampled_from([Opcode.BINARY, Opcode.PING, Opcode.PONG]), payloads.map(lambda data: data[:125])),
).map(lambda frame: frame.serialize(mask=False))
odd = st.sampled_from(
    [b"\x81\x7e\x00\x05hello", b"\x81\x85\0\0\0\0hello", b"\x88\x00", b"\x88\x02\x03\xe8", b"\xc1\x01x"]
)
pieces = st.lists(
    st.tuples(st.lists(st.one_of(frames, frames, frames, odd), min_size=1, max_size=4), st.lists(st.integers(1, 400))),
    max_size=6,
)


def heard(
    pieces: list[tuple[list[bytes], list[int]]], alone: bool
) -> tuple[list[str | bytes], str, list[tuple[object, bytes]]]:
    """What a WebSocket makes of frames in pieces: messages, how it ended, and what it answered."""
    peer = Peer()
    messages: list[str | bytes] = []
    ended = ""
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(_websocket, "whole_text", lambda data: None)
        try:
            for group, cuts in pieces:
                data = b"".join(group)
                begins = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
                for begin, end in itertools.pairwise(begins):
                    peer.socket.sendall(data[begin:end])
                    message = peer.websocket.receive()
                    while message is not None:
                        messages.append(message)
                        message = peer.websocket.receive() if peer.websocket.has_more else None
        except ConnectionClosed as closed:
            ended = str(closed)
        except OSError:  # it has closed its side
            ended = "gone"
        peer.socket.setblocking(False)
        try:
            answered = [(frame.opcode, bytes(frame.data)) for frame in peer.frames()]
        except OSError:
            answered = []
        peer.close()
    return messages, ended, answered


@given(pieces)
def test_any_stream_is_read_as_the_library_reads_it(pieces: list[tuple[list[bytes], list[int]]]) -> None:
    assert heard(pieces, alone=False) == heard(pieces, alone=True)
