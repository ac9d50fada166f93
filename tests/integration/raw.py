"""What a client may send and a good one never does: WebSocket frames by hand, and ranks that are nothing else.

A frame is masked with zeros, which the protocol allows and which leaves the payload readable and free to repeat."""

from __future__ import annotations

import array
import contextlib
import json
import mmap
import os
import socket
import struct
import time
from types import TracebackType
from typing import Any

from daemon import DEADLINE_S

TEXT, BINARY_FRAME, CLOSE, PING, PONG = 1, 2, 8, 9, 10
UPGRADE = (
    b"GET /rpc HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: gradsync.v1.jsonrpc\r\n\r\n"
)
REPLICATED = [{"axes": ["dp"], "kind": "partial", "op": "sum", "to": {"kind": "replicate"}}]


def header(length: int, opcode: int = TEXT, *, fin: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    first = (0x80 if fin else 0) | reserved << 4 | opcode
    mask = 0x80 if masked else 0
    if length < 126:
        size = struct.pack("!BB", first, mask | length)
    elif length < 1 << 16:
        size = struct.pack("!BBH", first, mask | 126, length)
    else:
        size = struct.pack("!BBQ", first, mask | 127, length)
    return size + (bytes(4) if masked else b"")


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    return header(len(payload), opcode, fin=fin, masked=masked, reserved=reserved) + payload


def request(number: int, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


class Closed(Exception):
    """The other side ended the connection; `code` 0: without a close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code, self.reason = code, reason


def connected(address: str) -> socket.socket:
    """A connection; where the daemon has not accepted those before it, the system says so at once and does not wait."""
    end = time.monotonic() + DEADLINE_S
    while True:
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(DEADLINE_S)
        try:
            raw.connect(address)
            return raw
        except BlockingIOError:
            raw.close()
            assert time.monotonic() < end, f"{address} accepts nobody"
            time.sleep(0.001)
        except BaseException:
            raw.close()
            raise


class RawClient:
    """One upgraded connection on the unix socket."""

    def __init__(self, address: str, *, initialize: bool = False) -> None:
        self.address = address
        self.socket = connected(address)
        self._read = b""
        self._ids = 0
        self._answers: dict[int, Any] = {}
        self.events: list[Any] = []
        self.socket.sendall(UPGRADE)
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, self._read = self._read.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101"), head
        if initialize:
            client = {"name": "raw", "version": "0"}
            hello = {"protocol": 1, "client": client, "client_id": os.urandom(16).hex(), "pid": os.getpid()}
            self.hello = self.call("session.initialize", **hello, boot_id="")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise Closed(0, "")
        self._read += data

    def frame(self) -> tuple[int, bytes]:
        """The next one, close frames included."""
        while len(self._read) < 2:
            self._more()
        length, start = self._read[1] & 127, 2
        wide = {126: "!H", 127: "!Q"}.get(length)
        if wide:
            start += struct.calcsize(wide)
            while len(self._read) < start:
                self._more()
            (length,) = struct.unpack(wide, self._read[2:start])
        while len(self._read) < start + length:
            self._more()
        opcode, payload = self._read[0] & 15, self._read[start : start + length]
        self._read = self._read[start + length :]
        return opcode, payload

    def message(self) -> Any:
        """The next message as JSON.

        Raises:
            Closed: the connection was ended instead.
        """
        while True:
            opcode, payload = self.frame()
            if opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                raise Closed(code, payload[2:].decode())
            if opcode == TEXT:
                return json.loads(payload)

    def closed(self) -> Closed:
        """How the connection ends; what comes before is read and forgotten."""
        try:
            while True:
                self.message()
        except Closed as end:
            return end
        except ConnectionResetError:
            return Closed(0, "reset")

    def ask(self, method: str, **params: object) -> int:
        """Sends a request and leaves its answer for `answer`."""
        self._ids += 1
        self.send(frame(request(self._ids, method, **params)))
        return self._ids

    def answer(self, number: int) -> Any:
        """To that request, or to one whose number the daemon could not read."""
        while number not in self._answers:
            message = self.message()
            if message.get("method") == "events.notification":
                self.events.append(message["params"])
            elif message["id"] is None:
                return message
            else:
                self._answers[message["id"]] = message
        return self._answers.pop(number)

    def answered(self, method: str, **params: object) -> Any:
        """The whole answer, which may be an error."""
        return self.answer(self.ask(method, **params))

    def call(self, method: str, **params: object) -> Any:
        answer = self.answered(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, **params: object) -> Any:
        answer = self.answered(method, **params)
        assert "error" in answer, answer
        return answer["error"]


def fetch(address: str, token: str) -> tuple[Any, list[int]]:
    """What the second socket answers to a token, and the descriptors that came with it."""
    with connected(address.replace(".sock", ".fd.sock")) as second:
        second.sendall(token.encode() + b"\n")
        data, fds, _, _ = socket.recv_fds(second, 4096, 4)
        while not data.endswith(b"\n"):
            more = second.recv(4096)
            assert more, f"the second socket ended with {data!r}"
            data += more
        return json.loads(data), fds


class RawRank(RawClient):
    """A rank of a job with one axis `dp`; `values` is its arena as float32 once it has declared."""

    def __init__(self, address: str, job: str, rank: int, world: int) -> None:
        super().__init__(address, initialize=True)
        mesh = {"name": "m", "axes": [{"name": "dp", "size": world}]}
        self.rank = rank
        self.call("job.attach", job=job, rank=rank, world_size=world, meshes=[mesh])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with contextlib.suppress(OSError, Closed):  # it may have been closed, or attached by nobody any more
                self.answered("job.detach")
        super().__exit__(kind, error, trace)

    def allocate(self, size: int) -> None:
        given = self.call("buffers.allocate", bytes=size, device="cpu")
        answer, fds = fetch(self.address, given["token"])
        assert answer == {"bytes": size}, answer
        self.buffer: int = given["buffer"]
        self._memory = mmap.mmap(fds[0], size)
        os.close(fds[0])
        self.values = memoryview(self._memory).cast("f")

    def ask_declare(self, names: list[str], numel: int) -> int:
        tensors = [
            {"name": name, "shape": [numel], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
            for name in names
        ]
        self.numel = numel
        self.allocate(len(names) * -(-numel * 4 // 64) * 64)
        return self.ask("gradients.declare", buffer=self.buffer, tensors=tensors)

    def declared(self, number: int) -> None:
        answer = self.answer(number)
        assert "result" in answer, answer
        self.declaration = answer["result"]
        self.epoch, self.attempt = answer["result"]["epoch"], answer["result"]["attempt"]

    def fill(self, value: float) -> None:
        """The same value for every element of every tensor."""
        filled = array.array("f", [value]) * self.numel
        for offset in self.declaration["offsets"]:
            self.values[offset // 4 : offset // 4 + self.numel] = filled

    def ask_finish(self, step: int, **more: object) -> int:
        fence = {"epoch": self.epoch, "attempt": self.attempt, "step": step}
        return self.ask("step.finish", **{**fence, "ready": "all", **more})

    def finished(self, number: int) -> Any:
        """The report or the error; either says which attempt is next."""
        answer = self.answer(number)
        if "result" in answer:
            self.attempt = answer["result"]["next_attempt"]
            return answer["result"]
        data = answer["error"]["data"]
        self.epoch, self.attempt = data.get("epoch", self.epoch), data.get("attempt", self.attempt)
        return answer["error"]


def declare_all(ranks: list[RawRank], names: list[str], numel: int) -> None:
    asked = [rank.ask_declare(names, numel) for rank in ranks]
    for rank, number in zip(ranks, asked, strict=True):
        rank.declared(number)
