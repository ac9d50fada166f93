"""Replays tests/contract/*.jsonl against a real gradsyncd over its unix socket (the README there has the format).

The C++ tests replay the same files against the dispatcher, with a clock, foreign peers and processes that end.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_daemon import binary
from websockets.sync.client import ClientConnection, unix_connect

Json = Any
FOLDER = Path(__file__).parents[2] / "contract"
CODES = {row["kind"]: row for row in json.loads((FOLDER / "error_codes.json").read_text())}
WAIT_S = 30.0


def read_lines(path: Path) -> list[Json]:
    return [json.loads(text) for text in path.read_text().splitlines() if text]


def load() -> list[tuple[Json, list[Json]]]:
    """Transcripts as (first line, lines with includes unfolded)."""
    fragments: dict[str, list[Json]] = {}
    for line in read_lines(FOLDER / "fragments.jsonl"):
        if "fragment" in line:
            current = fragments.setdefault(line["fragment"], [])
        else:
            current.append(line)

    def unfold(line: Json, on: str) -> Iterator[Json]:
        where = line.get("on", on)
        if "include" not in line:
            yield {**line, "on": where}
            return
        if "set" in line:
            yield {"set": line["set"], "on": where}
        for included in fragments[line["include"]]:
            yield from unfold(included, where)

    transcripts: list[tuple[Json, list[Json]]] = []
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in read_lines(path) if path.name != "fragments.jsonl" else []:
            if "name" in line:
                transcripts.append((line, []))
            else:
                transcripts[-1][1].extend(unfold(line, "a"))
    return transcripts


def substitute(value: Json, variables: dict[str, Json]) -> Json:
    if isinstance(value, str):
        if value.startswith("$") and value[1:] in variables:
            return variables[value[1:]]
        return re.sub(r"\$\{(\w+)\}", lambda name: str(variables[name[1]]), value)
    if isinstance(value, list):
        return [substitute(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: substitute(item, variables) for key, item in value.items()}
    return value


def stamp(given: Json) -> int:
    """A number, or the stamp of "epoch.attempt"."""
    if isinstance(given, int):
        return given
    epoch, attempt = given.split(".")
    return (int(epoch) << 32) + int(attempt) + 1


def is_number(found: Json) -> bool:
    return isinstance(found, (int, float)) and not isinstance(found, bool)


def is_hex(digits: int) -> Callable[[Json], bool]:
    return lambda found: isinstance(found, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", found) is not None


WILDCARDS: dict[str, Callable[[Json], bool]] = {
    "<any>": lambda found: True,
    "<int>": lambda found: isinstance(found, int) and not isinstance(found, bool),
    "<number>": lambda found: is_number(found) or found in ("NaN", "Infinity", "-Infinity"),
    "<text>": lambda found: isinstance(found, str),
    "<bool>": lambda found: isinstance(found, bool),
    "<list>": lambda found: isinstance(found, list),
    "<object>": lambda found: isinstance(found, dict),
    "<hex16>": is_hex(16),
    "<hex32>": is_hex(32),
}


def match(pattern: Json, found: Json, variables: dict[str, Json], path: str = "message") -> None:
    """Asserts that `found` is what the pattern says; binds variables that are not set yet."""
    if isinstance(pattern, str):
        if pattern.startswith("<has:"):
            assert pattern[5:-1] in str(found), f"{path}: {found!r} has no {pattern[5:-1]!r}"
            return
        if pattern in WILDCARDS:
            assert WILDCARDS[pattern](found), f"{path}: {found!r} is no {pattern}"
            return
        if pattern.startswith("$") and not pattern.startswith("${"):
            pattern = variables.setdefault(pattern[1:], found)
    pattern = substitute(pattern, variables) if isinstance(pattern, str) else pattern
    if isinstance(pattern, dict) and isinstance(found, dict):
        names = set(pattern) - {"..."}
        assert names <= set(found), f"{path}: {sorted(names - set(found))} missing in {found}"
        assert "..." in pattern or names == set(found), f"{path}: {sorted(set(found) - names)} not expected"
        for name in names:
            match(pattern[name], found[name], variables, f"{path}.{name}")
    elif isinstance(pattern, list) and isinstance(found, list):
        assert len(pattern) == len(found), f"{path}: expected {pattern}, found {found}"
        for index, item in enumerate(pattern):
            match(item, found[index], variables, f"{path}[{index}]")
    else:
        same = pattern == found and isinstance(pattern, bool) == isinstance(found, bool)
        assert same, f"{path}: expected {pattern!r}, found {found!r}"


def error_pattern(expected: Json) -> Json:
    row = CODES[expected["kind"]]
    page = f"<has:(gradsyncd explain {expected['kind']})>"
    data = {"kind": expected["kind"], "retryable": row["retryable"], "hint": page, "...": True}
    data |= {key: value for key, value in expected.items() if key not in ("id", "kind", "message")}
    error = {"code": row["code"], "message": expected.get("message", "<text>"), "data": data}
    return {"jsonrpc": "2.0", "id": expected["id"], "error": error}


class Connection:
    """After every message a `status.get` is sent and its answer awaited, so that messages of several connections reach
    the daemon in the order of the transcript."""

    def __init__(self, path: str) -> None:
        self.socket: ClientConnection = unix_connect(
            path,
            uri="ws://localhost/",
            subprotocols=["gradsync.v1.jsonrpc"],  # type: ignore[list-item]
            compression=None,
            ping_interval=None,
            max_size=None,
            proxy=None,
        )
        self.barriers = 0
        self.queue: list[Json] = []

    def send(self, text: str) -> None:
        self.socket.send(text)
        self.barrier()

    def barrier(self) -> None:
        self.barriers += 1
        name = f"barrier-{self.barriers}"
        self.socket.send(json.dumps({"jsonrpc": "2.0", "id": name, "method": "status.get"}))
        while True:
            message = json.loads(self.socket.recv(timeout=WAIT_S))
            if isinstance(message, dict) and message.get("id") == name:
                return
            self.queue.append(message)

    def take(self) -> Json:
        return self.queue.pop(0) if self.queue else json.loads(self.socket.recv(timeout=WAIT_S))


class Player:
    def __init__(self, path: str, job: str) -> None:
        self.path = path
        self.variables: dict[str, Json] = {"job": job}
        self.connections: dict[str, Connection] = {}
        self.arenas: dict[str, int] = {}

    def connection(self, on: str) -> Connection:
        if on not in self.connections:
            self.connections[on] = Connection(self.path)
        return self.connections[on]

    def play(self, line: Json) -> None:
        on = self.variables["on"] = line["on"]
        if "set" in line:
            self.variables |= substitute(line["set"], self.variables)
        elif "send" in line:
            self.connection(on).send(json.dumps(substitute(line["send"], self.variables)))
        elif "send_text" in line:
            self.connection(on).send(line["send_text"])
        elif "expect" in line:
            match(line["expect"], self.connection(on).take(), self.variables)
        elif "expect_error" in line:
            match(error_pattern(line["expect_error"]), self.connection(on).take(), self.variables)
        elif "expect_nothing" in line:
            assert self.connection(on).queue == []
        elif "post" in line:
            self.post(line)
        elif "fetch" in line:
            match(line["answer"], self.fetch(substitute(line["fetch"], self.variables)), self.variables)
        elif "fill" in line:
            self.fill(line["fill"])
        elif "close" in line:
            self.connections.pop(on).socket.close()
        else:
            raise AssertionError(f"a line that means nothing: {line}")

    def post(self, line: Json) -> None:
        body = line["post"] if isinstance(line["post"], str) else json.dumps(substitute(line["post"], self.variables))
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(WAIT_S)
            raw.connect(self.path)
            head = "POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            raw.sendall((head + body).encode())
            response = http.client.HTTPResponse(raw, method="POST")
            response.begin()
            answer = response.read()
        assert response.status == line["status"]
        if "body" in line:
            match(line["body"], json.loads(answer), self.variables)
        else:
            assert answer == b""

    def fill(self, what: Json) -> None:
        token = substitute(what["token"], self.variables)
        if token not in self.arenas:
            answer = self.fetch(token)
            assert token in self.arenas, answer
        if "rows" in what:
            rows = b"".join(
                struct.pack("<QddddQQQ", stamp(row[0]), *row[1:]) for row in substitute(what["rows"], self.variables)
            )
            os.pwrite(self.arenas[token], rows, what.get("offset", 0))
            return
        values = [math.nan if value == "nan" else float(value) for value in what["values"]]
        os.pwrite(self.arenas[token], struct.pack(f"{len(values)}f", *values), what.get("offset", 0))

    def fetch(self, token: str) -> Json:
        """The answer of the fd socket; a descriptor that comes with it is kept under its token."""
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(WAIT_S)
            raw.connect(self.path.removesuffix(".sock") + ".fd.sock")
            raw.sendall(token.encode() + b"\n")
            answer, descriptors, _, _ = socket.recv_fds(raw, 65536, 1)
            if descriptors:
                self.arenas[token] = descriptors[0]
            return json.loads(answer)

    def close(self) -> None:
        for connection in self.connections.values():
            connection.socket.close()
        for descriptor in self.arenas.values():
            os.close(descriptor)


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A daemon of its own, which ends with its child `cat`."""
    command = [binary(), "run", "--", "/bin/sh", "-c", 'echo "$GRADSYNC_ADDRESS"; exec cat']
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        try:
            yield daemon.stdout.readline().strip().removeprefix("unix:").removeprefix("//")
        finally:
            daemon.stdin.close()
            daemon.wait(WAIT_S)


@pytest.mark.parametrize(("head", "lines"), [pytest.param(*entry, id=entry[0]["name"]) for entry in load()])
def test_transcript(head: Json, lines: list[Json], socket_path: str) -> None:
    if needs := head.get("needs"):
        pytest.skip(f"needs {', '.join(needs)}: replayed by the C++ tests")
    player = Player(socket_path, head["name"])
    try:
        for number, line in enumerate(lines, 1):
            try:
                player.play(line)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"line {number} {json.dumps(line)[:300]}: {error}") from error
        for on, connection in player.connections.items():
            connection.barrier()
            assert connection.queue == [], f"not expected at the end on {on}"
    finally:
        player.close()
