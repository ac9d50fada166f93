"""The connection as a WebSocket: messages, closing, a peer that does not read, and which thread reads."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from background import in_thread
from fake_daemon import NO_REPLY, FakeDaemon
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

import gradsync
from gradsync import _wire
from gradsync._transport import _connection, _turns, _websocket
from gradsync._transport._calls import unscoped
from gradsync._transport._websocket import WebSocket
from gradsync.errors import ConnectionLost

WAIT_S = 40.0
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
        self.websocket.pump()
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


def receive(peer: Peer) -> bytes:
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
    assert [receive(peer) for _ in range(3)] == [b"one", b"two", b"three"]
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
    assert receive(peer) == "größe".encode()


@pytest.fixture
def callers_read(client: gradsync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the thread that waits for an answer reads it, however late: the reader thread stays aside."""
    monkeypatch.setattr(_turns, "_LENT_S", 1000.0)
    client.status()  # may be read by the reader thread, which has the turn from the beginning
    client.status()  # so it has given it back


@pytest.mark.usefixtures("callers_read")
def test_an_answer_that_is_there_is_read_without_patience(client: gradsync.Client) -> None:
    channel = client._channel
    pending = channel._submit("status.get", {}, True, unscoped, wait=False)
    assert select.select([channel._connection._websocket.socket], [], [], WAIT_S)[0]
    assert channel._connection.wait(pending, 0)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Frame(Opcode.TEXT, b"x" * (LIMIT + 1))], 1009),
        ([Frame(Opcode.TEXT, b"x" * 60, fin=False), Frame(Opcode.CONT, b"x" * LIMIT)], 1009),
        ([Frame(Opcode.CONT, b"x")], 1002),
    ],
)
def test_what_the_protocol_forbids_ends_the_connection_with_its_code(
    frames: list[Frame], code: int, peer: Peer
) -> None:
    peer.send(Frame(Opcode.TEXT, b"before"), *frames)
    assert receive(peer) == b"before"
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


# which thread reads


def readers(client: gradsync.Client) -> list[threading.Thread]:
    """Fills with the thread that reads each message."""
    found: list[threading.Thread] = []
    calls: Any = client._channel._calls
    inner = calls.on_message
    calls.on_message = lambda message: (found.append(threading.current_thread()), inner(message))[1]
    return found


@pytest.mark.usefixtures("callers_read")
def test_the_thread_that_waits_reads(client: gradsync.Client) -> None:
    found = readers(client)
    for _ in range(5):
        client.status()
    assert found == [threading.current_thread()] * 5


def test_the_reader_thread_reads_again_when_no_thread_calls(client: gradsync.Client, daemon: FakeDaemon) -> None:
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
    assert threads == [client._channel._connection.thread]
    client.status()


def test_calls_of_many_threads_get_their_own_answers(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.script["echo"] = lambda params: params
    results = [
        in_thread(lambda i=i: [client.call("echo", {"n": 100 * i + k})["n"] for k in range(50)]) for i in range(6)
    ]
    assert [result() for result in results] == [[100 * i + k for k in range(50)] for i in range(6)]


@pytest.mark.usefixtures("callers_read")
def test_an_answer_for_another_thread_is_read_when_the_reading_one_has_its_own(
    client: gradsync.Client, daemon: FakeDaemon
) -> None:
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


def test_a_defect_in_the_thread_that_reads_ends_the_client_instead_of_hanging_it(
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


@pytest.mark.usefixtures("callers_read")
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

    monkeypatch.setattr(ClientProtocol, "receive_data", receive_data)
    with pytest.raises(KeyboardInterrupt):
        client.status()
    assert client.status()["state"] == "serving"


@pytest.mark.usefixtures("callers_read")
def test_a_ctrl_c_while_an_answer_is_read_is_a_lost_connection(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = False

    def interrupt(data: bytes) -> Any:
        nonlocal interrupted
        if interrupted or threading.current_thread() is not threading.main_thread():
            return _wire.load(data)
        interrupted = True
        raise KeyboardInterrupt

    monkeypatch.setattr(_connection, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.status()
    assert client.status()["state"] == "serving"
    assert len(daemon.of("session.initialize")) == 2


def test_a_callback_that_calls_the_daemon_is_refused(client: gradsync.Client, daemon: FakeDaemon) -> None:
    refused: list[gradsync.UsageError] = []
    came = threading.Event()

    def callback(params: dict[str, Any]) -> None:
        try:
            client.status()
        except gradsync.UsageError as error:
            refused.append(error)
        came.set()

    with client.subscribe(["step"], callback):
        params = {"subscription": 1, "topic": "step", "job": "j", "dropped": 0, "event": {}}
        daemon.push({"jsonrpc": "2.0", "method": "events.notification", "params": params})
        assert came.wait(WAIT_S)
    assert "event callback" in str(refused[0])


@pytest.mark.usefixtures("callers_read")
def test_a_lost_connection_is_found_by_the_thread_that_waits(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.script["status.get"] = lambda params: NO_REPLY
    result = in_thread(client.status)
    daemon.wait_for("status.get", 3)
    del daemon.script["status.get"]
    daemon.drop_connections()
    assert result()["state"] == "serving"


@pytest.mark.usefixtures("callers_read")
def test_noise_read_by_the_thread_that_waits_is_a_lost_connection(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.script["status.get"] = lambda params: NO_REPLY
    result = in_thread(client.status)
    daemon.wait_for("status.get", 3)
    del daemon.script["status.get"]
    daemon._connections[-1].send("<html>")
    assert result()["state"] == "serving"
    assert len(daemon.of("session.initialize")) == 2
