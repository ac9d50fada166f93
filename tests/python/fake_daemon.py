"""A TEST FAKE of gradsyncd: answers by script, reduces nothing. One process, real unix sockets, real memfds.

It plays one daemon for clients of a single rank. `script[method]` replaces an answer: a function of the params that
returns the result, raises `Fault`, or returns `NO_REPLY`. `received` lists what came, in order.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import struct
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fake_memory import FakeMemory
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, unix_serve
from websockets.typing import Subprotocol

NO_REPLY = object()
ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
SUBPROTOCOL = "gradsync.v1.jsonrpc"
WAIT_S = 40.0

Script = Callable[[dict[str, Any]], Any]


class Fault(Exception):
    """An error the fake answers with."""

    def __init__(self, kind: str, message: str = "scripted", code: int = 1, **data: Any) -> None:
        super().__init__(message)
        self.wire = {
            "code": code,
            "message": message,
            "data": {"kind": kind, "retryable": False, "hint": "scripted hint", **data},
        }


def report(step: int, epoch: int = 1, attempt: int = 0, **fields: Any) -> dict[str, Any]:
    """A report as the protocol has it."""
    return {
        "step": step,
        "epoch": epoch,
        "attempt": attempt,
        "next_attempt": attempt + 1,
        "norm": 2.0,
        "threshold": "Infinity",
        "coefficient": 1,
        "clipped": False,
        "skipped": False,
        "reason": "measured only",
        "found_inf": False,
        "groups": [
            {
                "name": "all",
                "norm": 2.0,
                "threshold": "Infinity",
                "coefficient": 1,
                "clipped": False,
                "reason": "measured only",
            }
        ],
        "layers": [],
        "nonfinite": [],
        "divergence": [],
        "absent": [],
        "stable_buckets": [],
        "counted_elements": 4,
        "collectives": 1,
        "data_path": "arena",
        "policy_digest": "0" * 16,
        "timings": {"wait_s": 0, "reduce_s": 0.25, "norm_s": 0, "clip_s": 0, "total_s": 0.5},
        **fields,
    }


def norm_dtype(tensors: list[dict[str, Any]]) -> str:
    return "float64" if any(tensor["dtype"] == "float64" for tensor in tensors) else "float32"


def _accept_until_shut_down(server: Server) -> None:
    # shutdown() closes the socket from another thread: one that comes before the first accept() can end in EBADF.
    with contextlib.suppress(OSError):
        server.serve_forever()


class FakeDaemon:
    """Listens from construction until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gradsync.sock")
        self.script: dict[str, Script] = {}
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.incarnation = secrets.token_hex(8)
        self.epoch, self.attempt, self.last_step = 1, 0, -1
        self.resumed = True
        self.attached: str | None = None
        self.tensors_per_bucket = 2
        self.plan_digest = "ab" * 8
        self.refuse: tuple[int, str] | None = None
        self._news = threading.Condition()
        self._connections: list[ServerConnection] = []
        self._pages: list[dict[str, Any]] = []
        self.data_path = "arena"
        self.norm_dtype: str | None = None  # None: that of the declared tensors
        self.keeps_records = False
        self.memory = FakeMemory(self.path.removesuffix(".sock") + ".fd.sock")
        self._server: Server | None = None
        self._threads: list[threading.Thread] = []
        self.listen()

    # what tests do

    def listen(self) -> None:
        """Accepts connections (again)."""
        self._server = unix_serve(
            self._serve,
            self.path,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            ping_interval=None,
            process_request=self._process_request,
        )
        self._start(functools.partial(_accept_until_shut_down, self._server))

    def stop_listening(self) -> None:
        """As a daemon that is gone: closes everything and removes the socket file."""
        assert self._server is not None
        self._server.shutdown()
        Path(self.path).unlink()  # before a client notices, whose test may listen again at once
        self.drop_connections()

    def drop_connections(self) -> None:
        """Cuts every connection without a closing handshake."""
        with self._news:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close_socket()

    def restart(self) -> None:
        """As a daemon that was killed and started again: everything forgotten, connections cut."""
        with self._news:
            self.incarnation = secrets.token_hex(8)
            self.attached = None
            self.epoch, self.attempt = self.epoch + 1000, 0
            self.memory.lose_everything()
        self.drop_connections()

    def push(self, message: dict[str, Any]) -> None:
        """Sends a message on the last connection."""
        self._connections[-1].send(json.dumps(message))

    def of(self, method: str) -> list[dict[str, Any]]:
        """Params of every message of a method so far."""
        with self._news:
            return [params for name, params in self.received if name == method]

    def wait_for(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        """Waits until a method came `count` times."""

        def came() -> list[dict[str, Any]]:
            return [params for name, params in self.received if name == method]

        with self._news:
            assert self._news.wait_for(lambda: len(came()) >= count, WAIT_S), (method, count, self.received)
            return came()

    def table(self, buffer: int) -> list[tuple[Any, ...]]:
        """The rows of a buffer of data path stats: stamp, four doubles, three counts."""
        fd = self.memory.buffers[buffer]
        return list(struct.iter_unpack("<Q4d3Q", os.pread(fd, os.fstat(fd).st_size, 0)))

    def arena(self, buffer: int) -> int:
        """The memfd of a buffer."""
        return self.memory.buffers[buffer]

    @property
    def live_buffers(self) -> list[int]:
        """Buffers not released."""
        return list(self.memory.buffers)

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self.drop_connections()
        self.memory.stop()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    # sockets

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="fake-daemon", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _process_request(self, connection: ServerConnection, request: Any) -> Any:
        if self.refuse is None:
            return None
        status, body = self.refuse
        return connection.respond(HTTPStatus(status), body)

    def _serve(self, connection: ServerConnection) -> None:
        with self._news:
            self._connections.append(connection)
        with contextlib.suppress(ConnectionClosed):
            for text in connection:
                self._on_message(connection, json.loads(text))

    def _on_message(self, connection: ServerConnection, message: dict[str, Any]) -> None:
        method, params = message["method"], message["params"]
        answer: dict[str, Any] | None = None
        try:
            with self._news:
                handler = self.script.get(method) or getattr(self, "on_" + method.replace(".", "_"))
                result = handler(params)
                self.received.append((method, params))
                self._news.notify_all()
            if result is not NO_REPLY:
                answer = {"result": result}
        except Fault as fault:
            with self._news:
                self.received.append((method, params))
                self._news.notify_all()
            answer = {"error": fault.wire}
        if answer is not None and "id" in message:
            with contextlib.suppress(ConnectionClosed):
                connection.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}))

    # the answers

    def on_session_initialize(self, params: dict[str, Any]) -> Any:
        return {
            "protocol": 1,
            "server": {"name": "gradsyncd", "version": "9.9.9", "pid": os.getpid(), "boot_id": ""},
            "incarnation": self.incarnation,
            "capabilities": {},
            "limits": {},
        }

    def on_job_attach(self, params: dict[str, Any]) -> Any:
        resumed = self.attached is not None and self.resumed
        self.attached = params["job"]
        return {
            "session": 1,
            "epoch": self.epoch,
            "attempt": self.attempt,
            "last_step": self.last_step,
            "resumed": resumed,
        }

    def on_job_detach(self, params: dict[str, Any]) -> Any:
        self.attached = None
        return {}

    def on_job_pause(self, params: dict[str, Any]) -> Any:
        return {}

    def on_buffers_allocate(self, params: dict[str, Any]) -> Any:
        buffer, token = self.memory.allocate(params["bytes"])
        return {"buffer": buffer, "bytes": params["bytes"], "token": token}

    def on_buffers_adopt(self, params: dict[str, Any]) -> Any:
        buffer, token = self.memory.adopt()
        return {"buffer": buffer, "bytes": params["bytes"], "token": token}

    def on_buffers_release(self, params: dict[str, Any]) -> Any:
        self.memory.release(params["buffer"])
        return {}

    def on_gradients_declare(self, params: dict[str, Any]) -> Any:
        if params.get("page", 0) == 0:
            self._pages = []
            self.data_path = params["options"].get("data_path", "arena")
        self._pages += params["tensors"]
        if not params.get("last", True):
            return {"received": len(self._pages)}
        record = {}
        if self.keeps_records:
            fd, size = self.memory.new_record()
            record = {"record": {"token": self.memory.offer(fd), "bytes": size}}
        if self.data_path == "stats":
            return record | {
                "epoch": self.epoch,
                "attempt": self.attempt,
                "plan_digest": self.plan_digest,
                "arena_bytes": 64 * max(1, len(self._pages)),
                "clip_groups": ["all"],
                "check": True,
                "norm_dtype": self.norm_dtype or norm_dtype(self._pages),
            }
        offsets, at = [], 0
        for tensor in self._pages:
            offsets.append(at)
            count = 1
            for dim in tensor.get("local_shape", tensor["shape"]):
                count *= dim
            at += -(-count * ITEM_BYTES[tensor["dtype"]] // 64) * 64
        indices = list(reversed(range(len(self._pages))))
        size = self.tensors_per_bucket
        return record | {
            "epoch": self.epoch,
            "attempt": self.attempt,
            "plan_digest": self.plan_digest,
            "arena_bytes": at,
            "clip_groups": ["all"],
            "buckets": [
                {
                    "dtype": self._pages[indices[i]]["dtype"],
                    "offset": 0,
                    "bytes": 64,
                    "tensors": indices[i : i + size],
                }
                for i in range(0, len(indices), size)
            ],
            "offsets": offsets,
            "check": True,
        }

    def on_bucket_ready(self, params: dict[str, Any]) -> Any:
        return NO_REPLY

    def on_tensor_unused(self, params: dict[str, Any]) -> Any:
        return NO_REPLY

    def on_step_finish(self, params: dict[str, Any]) -> Any:
        self.attempt = params["attempt"] + 1
        self.last_step = params["step"]
        return report(params["step"], params["epoch"], params["attempt"])

    def on_norm_compute(self, params: dict[str, Any]) -> Any:
        return report(params["step"], params["epoch"], params["attempt"], next_attempt=params["attempt"])

    def on_clip_apply(self, params: dict[str, Any]) -> Any:
        return self.on_step_finish(params)

    def on_status_get(self, params: dict[str, Any]) -> Any:
        return {
            "version": "9.9.9",
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "state": "serving",
            "uptime_s": 1,
            "jobs": [],
        }

    def on_stats_get(self, params: dict[str, Any]) -> Any:
        return {"reports": [report(self.last_step)]}

    def on_events_subscribe(self, params: dict[str, Any]) -> Any:
        return {"subscription": len(self.of_unlocked("events.subscribe")) + 1}

    def on_events_unsubscribe(self, params: dict[str, Any]) -> Any:
        return {}

    def of_unlocked(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.received if name == method]
