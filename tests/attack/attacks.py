"""What a client does to hurt others, in sizes that a test or `measure.py` chooses."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import statistics
import time
from collections.abc import Callable, Sequence

from daemon import DEADLINE_S
from hostile import Daemon
from raw import REPLICATED, RawClient, RawRank, frame, request
from victim import lasts

WORLD = 4096
SUBSCRIPTIONS = 16
PAGE_BYTES = 900_000


def cpu_seconds(pid: int) -> float:
    """The time that a process has computed, which is the same on a busy machine."""
    return time.clock_gettime((~pid) << 3 | 2)


def computed(daemon: Daemon, act: Callable[[], object]) -> float:
    """What the daemon computes while a client waits for an answer."""
    before = cpu_seconds(daemon.process.pid)
    act()
    return cpu_seconds(daemon.process.pid) - before


def in_turn(acts: Sequence[Callable[[], float]], rounds: int = 5) -> list[float]:
    """The median of each, measured alternately; `rounds` is the least number."""
    measured, begin = [], time.monotonic()
    while len(measured) < rounds or lasts(begin):
        measured.append([act() for act in acts])
    return [statistics.median(column) for column in zip(*measured, strict=True)]


def more_descriptors(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


def idle_jobs(daemon: Daemon, stack: contextlib.ExitStack, number: int) -> None:
    """Jobs of 4,096 ranks of which one is there."""
    more_descriptors(2 * number + 200)
    for index in range(number):
        stack.enter_context(RawRank(daemon.socket, f"idle-{index}", 0, WORLD))


def job_of(daemon: Daemon, stack: contextlib.ExitStack, ranks: int) -> list[RawRank]:
    """The ranks of one job, all of this process."""
    more_descriptors(2 * ranks + 200)
    return [stack.enter_context(RawRank(daemon.socket, f"job-{ranks}", rank, ranks)) for rank in range(ranks)]


def message_with_keys(names: list[str]) -> bytes:
    """A request whose params have these keys; it fits into a message with 49,000 of 16 letters."""
    return b'{"jsonrpc":"2.0","id":1,"method":"status.get","params":' + json.dumps(
        dict.fromkeys(names, 0), separators=(",", ":")
    ).encode() + b"}"  # fmt: skip


def ask_declare(rank: RawRank, names: list[str]) -> int:
    """Declares tensors of one number with these names, in pages; the last page is the one that is asked."""
    rank.allocate(len(names) * 64)
    rank.numel = 1
    page, number = max(1, PAGE_BYTES // (len(names[-1]) + 160)), 0
    for first in range(0, len(names), page):
        tensors = [
            {"name": name, "shape": [1], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
            for name in names[first : first + page]
        ]
        last = first + page >= len(names)
        number = rank.ask("gradients.declare", buffer=rank.buffer, page=first // page, tensors=tensors, last=last)
        if not last:
            assert "result" in rank.answer(number)
    return number


def declare(rank: RawRank, names: list[str], *, timeout: float = DEADLINE_S) -> None:
    """`timeout` is for each answer."""
    rank.socket.settimeout(timeout)
    rank.declared(ask_declare(rank, names))


def batch(method: str, items: int, **params: object) -> bytes:
    """Has requests with ids that this connection has not used."""
    return b"[" + b",".join(request(1_000_000 + item, method, **params) for item in range(items)) + b"]"


def whole_batch(client: RawClient, message: bytes) -> list[dict[str, object]]:
    client.send(frame(message))
    answers: list[dict[str, object]] = client.message()
    return answers


def subscribe_and_do_not_read(client: RawClient) -> None:
    """As often as a connection may, to every step of every job."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(SUBSCRIPTIONS):
        client.call("events.subscribe", topics=["step", "alert", "epoch"])
