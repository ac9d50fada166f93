"""The connection as a WebSocket: frames, closing, a peer that does not read, and who reads."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import NO_REPLY, FakeDaemon
from test_reconnect import in_thread
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

import gradsync
from gradsync import _awake, _channel, _connection, _frames, _turns, _websocket
from gradsync._awake import Awake
from gradsync._pending import NOTHING
from gradsync._websocket import WebSocket
from gradsync.errors import ConnectionLost

WAIT_S = 20.0
LIMIT = 20_000  # bytes of a message


class Peer:
    """The other end of a WebSocket, and the WebSocket."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.socket.settimeout(WAIT_S)
        self.protocol = ServerProtocol()
        client = ClientProtocol(parse_uri("ws://localhost/"), max_size=LIMIT)
        self.websocket = WebSocket(ours, client)
        client.send_request(client.connect())
        self.websocket.begin()
        self.read()
        request: Any = self.protocol.events_received()[0]
        self.protocol.send_response(self.protocol.accept(request))
        self.flush()
        self.websocket.pump()

    def read(self) -> None:
        self.protocol.receive_data(self.socket.recv(1 << 16))

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.socket.sendall(data)
            else:
                self.socket.shutdown(socket.SHUT_WR)

    def send(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(frame.serialize(mask=False) for frame in frames))

    def frames(self) -> list[Frame]:
        self.read()
        return [event for event in self.protocol.events_received() if isinstance(event, Frame)]

    def close(self) -> None:
        self.websocket.dispose()
        self.socket.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def receive(peer: Peer) -> str | bytes:
    while True:
        assert peer.websocket.readable(WAIT_S)
        message = peer.websocket.receive()
        if message is not None:
            return message


def test_messages_come_one_by_one_and_in_fragments(peer: Peer) -> None:
    peer.send(
        Frame(Opcode.TEXT, b"one"),
        Frame(Opcode.TEXT, b"t", fin=False),
        Frame(Opcode.CONT, b"w", fin=False),
        Frame(Opcode.PING, b"?"),
        Frame(Opcode.CONT, b"o"),
        Frame(Opcode.BINARY, b"three"),
    )
    assert [receive(peer) for _ in range(3)] == ["one", "two", b"three"]
    assert not peer.websocket.has_more
    assert peer.websocket.receive() is None
    assert not peer.websocket.readable(0)
    assert [(frame.opcode, frame.data) for frame in peer.frames()] == [(Opcode.PONG, b"?")]


def test_a_message_that_comes_byte_by_byte_is_one(peer: Peer) -> None:
    data = Frame(Opcode.TEXT, "größe".encode()).serialize(mask=False)
    for byte in data[:-1]:
        peer.socket.sendall(bytes([byte]))
        assert peer.websocket.readable(WAIT_S)
        assert peer.websocket.receive() is None
    peer.socket.sendall(data[-1:])
    assert receive(peer) == "größe"


class Looks:
    """The poll object of a WebSocket, with what it was asked; `then` happens at the second look, and it never waits."""

    def __init__(self, websocket: WebSocket, then: Callable[[], None] = lambda: None) -> None:
        self.timeouts: list[float | None] = []
        self._real, self._then = websocket._watch, then
        websocket._watch = self  # type: ignore[assignment]

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        if len(self.timeouts) == 2:
            self._then()
        return self._real.poll(0)


def test_what_comes_while_it_waits_awake_is_found_without_sleeping(peer: Peer) -> None:
    looks = Looks(peer.websocket, lambda: peer.send(Frame(Opcode.TEXT, b"soon")))
    assert peer.websocket.readable(WAIT_S, time.monotonic() + WAIT_S)
    assert looks.timeouts == [0, 0]
    assert peer.websocket.receive() == "soon"


def test_what_does_not_come_is_waited_for_awake_and_then_asleep(peer: Peer) -> None:
    looks = Looks(peer.websocket)
    assert not peer.websocket.readable(WAIT_S, time.monotonic() + 0.01)
    assert set(looks.timeouts[:-1]) == {0}
    assert looks.timeouts[-1] is not None
    assert 0 < looks.timeouts[-1] < WAIT_S * 1000 - 9  # milliseconds: what is left
    looks.timeouts.clear()
    assert not peer.websocket.readable(0.01, time.monotonic() + WAIT_S)
    assert set(looks.timeouts) == {0}  # nothing is left
    looks.timeouts.clear()
    assert not peer.websocket.readable(0.01, time.monotonic())
    assert len(looks.timeouts) == 1


class Calling:
    """A rank that calls, and the time between."""

    def __init__(self, ranks: int | None = 2, cpus: float = 2) -> None:
        self.now = 100.0
        self.awake = Awake()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_awake, "available_cpus", lambda: cpus)
            if ranks is not None:
                self.awake.seat(ranks)

    def call(self, *, took: float, after: float = 0.01, answered: bool = True) -> bool:
        """Whether it would have waited awake."""
        self.now += after
        began, until = self.now, self.awake.until(self.now)
        assert until == 0 or until == pytest.approx(began + 2e-3)
        self.now += took
        self.awake.end(began, took, answered)
        return until != 0


def test_an_answer_is_waited_for_awake_after_two_that_took_neither_short_nor_long() -> None:
    calling = Calling()
    took = [1e-3, 1e-3, 2e-4, 1e-4, 2e-4, 1e-3, 1.9e-3, 0.1, 1e-3]
    assert [calling.call(took=seconds) for seconds in took] == [
        False,
        False,
        True,
        True,
        False,
        False,
        False,
        True,
        False,
    ]


def test_nobody_waits_awake_who_called_at_once_or_was_not_answered() -> None:
    calling = Calling()
    assert [calling.call(took=1e-3) for _ in range(3)] == [False, False, True]
    assert not calling.call(took=1e-3, after=1e-4)
    assert calling.call(took=1e-3, answered=False)
    assert not calling.call(took=1e-3)


@pytest.mark.parametrize(("ranks", "cpus"), [(3, 2), (2, 1.5), (None, 2)])
def test_nobody_waits_awake_without_a_cpu_for_each_rank(ranks: int | None, cpus: float) -> None:
    calling = Calling(ranks, cpus)
    assert not any(calling.call(took=1e-3) for _ in range(4))


@pytest.mark.parametrize(("text", "cpus"), [("150000 100000\n", 1.5), ("max 100000\n", 8), ("", 8), (None, 8)])
def test_cpus_are_those_of_affinity_and_of_the_containers_quota(
    text: str | None, cpus: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(_awake, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(_awake.os, "sched_getaffinity", lambda _: set(range(8)))
    assert _awake.available_cpus() == cpus


def test_an_attached_rank_waits_awake_for_answers_that_come_in_a_moment(
    client: gradsync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "SHORT_S", 0)
    monkeypatch.setattr(_awake, "_FROM_S", 0)
    monkeypatch.setattr(_awake, "_APART_S", 0)
    monkeypatch.setattr(_awake, "_UNTIL_S", WAIT_S)
    monkeypatch.setattr(_awake, "available_cpus", lambda: 1000)
    client.attach(job="test", rank=0, world_size=2)
    waits: list[bool] = []
    readable = WebSocket.readable

    def spy(self: WebSocket, timeout: float | None, awake_until: float = 0.0) -> bool:
        waits.append(awake_until > time.monotonic())
        return readable(self, timeout, awake_until)

    monkeypatch.setattr(WebSocket, "readable", spy)
    for _ in range(4):
        client.status()
    assert not waits[0]
    assert waits[-1]


def test_an_answer_that_is_there_is_read_without_patience(client: gradsync.Client) -> None:
    channel = client._channel
    client.status()  # the next answer is read by who waits for it
    pending = channel._submit("status.get", "{}", idempotent=True, session=False, wait=False)
    assert select.select([channel._connection._held.socket], [], [], WAIT_S)[0]
    assert channel._connection.wait(pending, 0) is not NOTHING


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Frame(Opcode.TEXT, b"x" * (LIMIT + 1))], 1009),
        ([Frame(Opcode.TEXT, b"x" * 60, fin=False), Frame(Opcode.CONT, b"x" * LIMIT)], 1009),
        ([Frame(Opcode.CONT, b"x")], 1002),
        ([Frame(Opcode.TEXT, b"\xff")], 1007),
    ],
)
def test_what_the_protocol_forbids_ends_the_connection_with_its_code(
    frames: list[Frame], code: int, peer: Peer
) -> None:
    peer.send(Frame(Opcode.TEXT, b"before"), *frames)
    assert receive(peer) == "before"
    assert [int.from_bytes(frame.data[:2], "big") for frame in peer.frames()] == [code]
    peer.flush()
    with pytest.raises(ConnectionClosed, match=str(code)):
        receive(peer)
    with pytest.raises(ConnectionClosed, match=str(code)):
        receive(peer)


def test_the_reason_of_a_daemon_that_closes_is_kept(peer: Peer) -> None:
    peer.protocol.send_close(1012, "upgrade")
    peer.flush()
    peer.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionClosed, match=r"1012 \(service restart\) upgrade") as closed:
        receive(peer)
    assert "upgrade" in peer.websocket.reason(closed.value)
    with pytest.raises(ConnectionClosed):
        peer.websocket.send("late")


def test_a_peer_that_does_not_close_is_not_waited_for(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_websocket, "_CLOSE_S", 0.05)
    peer.websocket.send_close()
    with pytest.raises(ConnectionClosed):
        receive(peer)


def test_a_message_larger_than_the_sockets_room_goes_as_the_peer_reads(peer: Peer) -> None:
    text = "x" * 3_000_000
    peer.protocol.max_size = None
    peer.websocket.send(text)
    peer.websocket.send("after")
    drained = in_thread(peer.websocket.drain)
    found: list[Frame] = []
    while len(found) < 2:
        found += peer.frames()
    drained()
    assert [len(frame.data) for frame in found] == [3_000_000, 5]


def test_a_kept_message_goes_before_the_next_one_or_not_at_all(peer: Peer) -> None:
    websocket = peer.websocket
    websocket.keep("one")
    websocket.send("two")
    websocket.keep("never")
    websocket.send("three", instead=True)
    websocket.keep("four")
    websocket.keep("five")
    websocket.send_kept()
    websocket.send_kept()
    assert [frame.data for frame in peer.frames()] == [b"one", b"two", b"three", b"four", b"five"]


def test_a_kept_message_is_sent_by_who_reads(peer: Peer) -> None:
    assert not peer.websocket.readable(0)
    peer.websocket.keep("one")
    assert peer.websocket.readable(WAIT_S)
    assert peer.websocket.receive() is None
    assert [frame.data for frame in peer.frames()] == [b"one"]
    assert not peer.websocket.readable(0)


def test_a_kept_message_ends_with_its_connection(peer: Peer) -> None:
    peer.websocket.keep("one")
    peer.protocol.send_close(1001)
    peer.flush()
    assert peer.websocket.receive() is None
    peer.websocket.send_kept()
    with pytest.raises(ConnectionClosed):
        peer.websocket.send("two")
    assert [frame.opcode for frame in peer.frames()] == [Opcode.CLOSE]


def test_a_peer_that_takes_nothing_is_given_up(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_websocket, "_SEND_S", 0.1)
    peer.websocket.send("x" * 3_000_000)
    peer.websocket.drain()
    with pytest.raises(ConnectionClosed) as closed:
        receive(peer)
    assert "took nothing" in peer.websocket.reason(closed.value)


def test_a_peer_that_is_gone_takes_no_message(peer: Peer) -> None:
    peer.socket.close()
    with pytest.raises(ConnectionClosed):
        peer.websocket.send("x")
    with pytest.raises(ConnectionClosed, match="no close frame"):
        receive(peer)


# who reads


def readers(client: gradsync.Client) -> list[threading.Thread]:
    """Fills with the thread that reads each message."""
    found: list[threading.Thread] = []
    calls: Any = client._channel._calls
    inner = calls.on_message
    calls.on_message = lambda message: (found.append(threading.current_thread()), inner(message))[1]
    return found


def test_who_waits_reads(client: gradsync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "_LENT_S", 1000.0)
    client.status()  # the reader thread may have waited for it
    found = readers(client)
    for _ in range(5):
        client.status()
    assert found == [threading.current_thread()] * 5


def test_the_reader_thread_reads_again_when_nobody_calls(client: gradsync.Client, daemon: FakeDaemon) -> None:
    client.status()
    client.status()
    daemon.drop_connections()
    daemon.wait_for("session.initialize", 2)


def test_with_a_subscription_callbacks_run_on_the_reader_thread(client: gradsync.Client, daemon: FakeDaemon) -> None:
    came = threading.Event()
    threads: list[threading.Thread] = []
    client.status()

    def callback(params: dict[str, Any]) -> None:
        threads.append(threading.current_thread())
        came.set()

    with client.subscribe(["step"], callback):
        client.status()
        params = {"subscription": 1, "topic": "step", "job": "j", "dropped": 0, "event": {}}
        daemon.push({"jsonrpc": "2.0", "method": "events.notification", "params": params})
        assert came.wait(WAIT_S)
    assert threads == [client._channel._connection._thread]
    client.status()


def test_calls_of_many_threads_get_their_own_answers(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.script["echo"] = lambda params: params
    results = [
        in_thread(lambda i=i: [client.call("echo", {"n": 100 * i + k})["n"] for k in range(50)]) for i in range(6)
    ]
    assert [result() for result in results] == [[100 * i + k for k in range(50)] for i in range(6)]


def test_an_answer_for_another_thread_is_read_when_the_reading_one_has_its_own(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_turns, "_LENT_S", 1000.0)  # the reader thread comes only when it is called
    client.status()
    client.status()
    for method in ("first", "second"):
        daemon.script[method] = lambda params: NO_REPLY
    first = in_thread(lambda: client.call("first"))
    daemon.wait_for("first")
    second = in_thread(lambda: client.call("second"))
    daemon.wait_for("second")
    ids = sorted(client._channel._calls._pending)
    for request_id, result in zip(ids, ("one", "two"), strict=True):
        daemon.push({"jsonrpc": "2.0", "id": request_id, "result": result})
    assert (first(), second()) == ("one", "two")


def test_a_defect_in_who_reads_ends_the_client_instead_of_hanging_it(
    client: gradsync.Client, daemon: FakeDaemon
) -> None:
    client.status()
    daemon.script["odd"] = lambda params: NO_REPLY
    result = in_thread(lambda: client.call("odd"))
    daemon.wait_for("odd")
    request_id = next(iter(client._channel._calls._pending))
    daemon.push({"jsonrpc": "2.0", "id": request_id, "error": 5})
    with pytest.raises(ConnectionLost, match="the client failed"):
        result()


def test_a_ctrl_c_inside_the_parser_is_a_lost_connection(
    client: gradsync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it interrupts, a generator, is over: whoever calls it again gets a StopIteration."""
    original = ClientProtocol.receive_data
    interrupted = False

    def receive_data(self: ClientProtocol, data: bytes) -> None:
        nonlocal interrupted
        if interrupted or threading.current_thread() is not threading.main_thread():
            original(self, data)
            return
        interrupted = True
        self.parser.close()
        raise KeyboardInterrupt

    client.status()  # who waits for the next answer reads it
    monkeypatch.setattr(_websocket, "whole_text", lambda data: None)
    monkeypatch.setattr(ClientProtocol, "receive_data", receive_data)
    with pytest.raises(KeyboardInterrupt):
        client.status()
    assert client.status()["state"] == "serving"


def test_a_ctrl_c_while_an_answer_is_read_is_a_lost_connection(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = False

    def interrupt(data: bytes) -> str | None:
        nonlocal interrupted
        if interrupted or threading.current_thread() is not threading.main_thread():
            return _frames.whole_text(data)
        interrupted = True
        raise KeyboardInterrupt

    client.status()  # who waits for the next answer reads it
    monkeypatch.setattr(_websocket, "whole_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.status()
    assert client.status()["state"] == "serving"
    assert len(daemon.of("session.initialize")) == 2


def test_a_thread_with_the_number_of_the_reader_that_ended_is_not_taken_for_it(
    client: gradsync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = client._channel._connection._thread
    monkeypatch.setattr(_channel, "get_ident", lambda: reader.ident)
    with pytest.raises(gradsync.UsageError, match="event callback"):
        client.status()
    client.close()
    reader.join(WAIT_S)
    with pytest.raises(ConnectionLost, match="the client was closed"):
        client.status()


def test_a_lost_connection_is_found_by_who_waits(client: gradsync.Client, daemon: FakeDaemon) -> None:
    client.status()
    daemon.script["status.get"] = lambda params: NO_REPLY
    result = in_thread(client.status)
    daemon.wait_for("status.get", 2)
    del daemon.script["status.get"]
    daemon.drop_connections()
    assert result()["state"] == "serving"


def test_noise_read_by_who_waits_is_a_lost_connection(client: gradsync.Client, daemon: FakeDaemon) -> None:
    client.status()
    daemon.script["status.get"] = lambda params: NO_REPLY
    result = in_thread(client.status)
    daemon.wait_for("status.get", 2)
    del daemon.script["status.get"]
    daemon._connections[-1].send("<html>")
    assert result()["state"] == "serving"
    assert len(daemon.of("session.initialize")) == 2
