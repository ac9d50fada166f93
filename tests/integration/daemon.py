"""A real gradsyncd for tests: its own folder, ports of the system's choice, a deadline on every wait."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

BINARY = os.environ.get("GRADSYNCD", str(Path(__file__).parents[2] / "build/cpu-release/bin/gradsyncd"))
DEADLINE_S = 60.0
TIMES = int(os.environ.get("FAULT_TIMES", "20"))  # how often a test repeats its fault


def clean_environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GRADSYNC_")}
    kept.pop("XDG_RUNTIME_DIR", None)
    return {**kept, **extra}


def free_port() -> int:
    """A port that nobody listens on, at any address. It is below those that Linux hands out by itself, so that hardly
    anybody else gets it before it is used."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise OSError("none of 100 ports is free")


def run_command(
    *arguments: str, env: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BINARY, *arguments],
        env=env or clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **options,  # type: ignore[call-overload]
    )


class UnixHttp(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(self._path)


class Daemon:
    """`gradsyncd serve` with JSON logs, ready when the context is entered.

    `before` are the words of a command that turns itself into the one behind it."""

    def __init__(
        self,
        *arguments: str,
        health: str = "127.0.0.1:0",
        folder: str | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gradsync-test-")
        self.socket = str(Path(folder or self._folder.name) / "gradsync.sock")
        self._arguments = [
            *before,
            BINARY,
            "serve",
            "--socket",
            self.socket,
            "--health",
            health,
            "--log-format",
            "json",
            *arguments,
        ]
        self.log: list[dict[str, str]] = []
        self._pending = b""

    def __enter__(self) -> Daemon:
        self.process = subprocess.Popen(self._arguments, env=clean_environment(), stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stderr, selectors.EVENT_READ)
        serving = self.wait_for_log("serving ")["msg"]
        self.fields = dict(part.split("=", 1) for part in serving.split()[1:])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._selector.close()
        self._folder.cleanup()

    def wait_for_log(self, start: str) -> dict[str, str]:
        """The first line not read yet whose message starts so."""
        end = time.monotonic() + DEADLINE_S
        while True:
            while b"\n" in self._pending:
                line, self._pending = self._pending.split(b"\n", 1)
                self.log.append(json.loads(line))
                if self.log[-1]["msg"].startswith(start):
                    return self.log[-1]
            assert self._selector.select(max(0.0, end - time.monotonic())), f"no log line {start!r}; had {self.log}"
            data = os.read(self.process.stderr.fileno(), 65536)  # type: ignore[union-attr]
            assert data, f"the daemon ended before the log line {start!r}; had {self.log}, {self._pending!r}"
            self._pending += data

    def health(self) -> http.client.HTTPConnection:
        host, port = self.fields["health"].rsplit(":", 1)
        return http.client.HTTPConnection(host, int(port), timeout=DEADLINE_S)

    def unix(self) -> UnixHttp:
        return UnixHttp(self.socket)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


def get(connection: http.client.HTTPConnection, path: str, verb: str = "GET") -> tuple[int, str]:
    connection.request(verb, path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def call(connection: http.client.HTTPConnection, method: str, **params: object) -> dict[str, object]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    connection.request("POST", "/rpc", body, {"Content-Type": "application/json"})
    answer: dict[str, object] = json.loads(connection.getresponse().read())
    return answer
