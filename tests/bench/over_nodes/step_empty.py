"""Steps of one element by two ranks over two daemons, beside those of one daemon and a bare exchange over TCP.

The echo makes both round trips of a step, with texts as long as those that daemons send: ask and decision, vote and
done. What two daemons take more than one is compared with it. Bare servers, one and two with a link, say what processes
that wait for each other take at the least.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import results
from contenders.stats_step import VALUE
from over_nodes.daemons import Nodes
from processes import Process, Ranks, Unavailable, listening, private_daemon
from step_empty import HELLO, echo_server, percentile

WORLD_SIZE = 2
STEPS = 500  # in a turn
WARM_UP_ROUNDS = 2
WANTED = 2.0
EXCHANGED = ("peer.ask", "peer.decision", "peer.vote", "peer.done")
SENT = re.compile(r'(?:from|to) another daemon link=\d+ (\{.*"method":"(peer\.\w+)".*)')
LOG_DEADLINE_S = 10.0
TRACED = 1024  # the log cuts a longer one


def message_bytes(log: str) -> dict[str, int]:
    """How long the messages of a step are, as a daemon traced them in JSON."""
    lines = [json.loads(line)["msg"] for line in log.splitlines(keepends=True) if line.endswith("\n")]
    sent = [match for match in map(SENT.match, lines) if match is not None]
    found = {match[2]: len(match[1].encode()) for match in sent if match[2] in EXCHANGED}
    cut = [method for method, size in found.items() if size >= TRACED]
    if cut:
        raise RuntimeError(f"the log does not say how long {', '.join(cut)} is")
    return found


def recorded_step(binary: Path, folder: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """How long the messages of one step over two daemons are, and what a rank exchanges with its daemon."""
    folder.mkdir()
    with Nodes(binary, folder, 2, "--log-level", "trace", "--log-format", "json") as nodes:
        ranks = Ranks("stats_step", WORLD_SIZE, {"steps": 1}, {}, nodes.environments(1))
        try:
            ranks.step()
            wait_until(lambda: len(message_bytes(nodes.log(1))) == len(EXCHANGED), "the log has no whole step")
            frames: dict[str, Any] = ranks.results[0]["frames"]
            return message_bytes(nodes.log(1)), frames
        finally:
            ranks.close()


class Echo:
    """Both ends of `bench_echo_tcp`."""

    def __init__(self, client: Process) -> None:
        self._client = client

    def microseconds(self) -> list[float]:
        self._client.ask("exchange")
        return [nanoseconds / 1e3 for nanoseconds in json.loads(self._client.answer())]


@contextlib.contextmanager
def echo_over_tcp(binary: Path, folder: Path, sizes: list[int]) -> Iterator[Echo]:
    """`sizes`: of a text, of its answer, of the next text, and so on."""
    if not binary.exists():
        raise Unavailable(f"{binary} is missing: build it with `make build`")
    folder.mkdir()
    port = folder / "port"
    with listening("bench_echo_tcp", [str(binary), "answer", "127.0.0.2", str(port)], port, {}):
        command = [str(binary), "ask", "127.0.0.2", text_in(port), str(STEPS), *map(str, sizes)]
        client = Process("bench_echo_tcp", command, {})
        try:
            client.answer()
            yield Echo(client)
        finally:
            client.close()


@contextlib.contextmanager
def linked_servers(binary: Path, folder: Path, result: str, sizes: list[int]) -> Iterator[list[dict[str, str]]]:
    """Two `bench_echo` with a link between them; yields the environments of their clients."""
    folder.mkdir()
    (folder / "hello.json").write_text(HELLO)
    (folder / "result.json").write_text(result)
    port, sockets = folder / "port", [folder / "0.sock", folder / "1.sock"]

    def command(server: int, *link: str) -> list[str]:
        files = [sockets[server], folder / "hello.json", folder / "result.json"]
        return [str(binary), *map(str, files), *link, *map(str, sizes)]

    with contextlib.ExitStack() as stack:
        stack.enter_context(listening("bench_echo", command(0, "listen", str(port)), port, {}))
        number = text_in(port)
        stack.enter_context(listening("bench_echo", command(1, "connect", number), sockets[1], {}))
        wait_until(sockets[0].exists, "bench_echo does not listen")
        yield [{"BENCH_ECHO": str(path)} for path in sockets]


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + LOG_DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise Unavailable(otherwise)
        time.sleep(0.01)


def text_in(port: Path) -> str:
    """What a server that listens wrote: a line."""
    wait_until(lambda: port.read_text().endswith("\n"), f"nothing is written to {port.name}")
    return port.read_text().strip()


def check(ranks: Ranks) -> None:
    if any(result["norm"] != VALUE for result in ranks.results):
        raise RuntimeError(f"the norm of {VALUE} is not {VALUE}: {[result['norm'] for result in ranks.results]}")


def started(
    binaries: Path, folder: Path, sizes: list[int], frames: dict[str, Any], stack: contextlib.ExitStack
) -> dict[str, Ranks | Echo]:
    """The contenders by name."""
    daemon, echo, tcp = (binaries / name for name in ("gradsyncd", "bench_echo", "bench_echo_tcp"))
    (folder / "nodes").mkdir()
    (folder / "bare").mkdir()

    def ranks(name: str, arguments: dict[str, Any], by_rank: list[dict[str, str]]) -> Ranks:
        made = Ranks(name, WORLD_SIZE, {"steps": STEPS, **arguments}, {}, by_rank)
        stack.callback(made.close)
        return made

    nodes = stack.enter_context(Nodes(daemon, folder / "nodes", 2))
    alone = {"GRADSYNC_ADDRESS": stack.enter_context(private_daemon(daemon, folder))}
    bare = {"BENCH_ECHO": stack.enter_context(echo_server(echo, folder / "bare", frames["result"], ("lane",)))}
    linked = stack.enter_context(linked_servers(echo, folder / "linked", frames["result"], sizes))
    return {
        "two_daemons": ranks("stats_step", {}, nodes.environments(1)),
        "one_daemon": ranks("stats_step", {}, [alone] * WORLD_SIZE),
        "tcp_echo": stack.enter_context(echo_over_tcp(tcp, folder / "echo", sizes)),
        "tcp_round_trip": stack.enter_context(echo_over_tcp(tcp, folder / "round_trip", sizes[:2])),
        "two_bare": ranks("echo", {"frames": frames}, linked),
        "one_bare": ranks("echo", {"frames": frames}, [bare] * WORLD_SIZE),
    }


def turn(contender: Ranks | Echo) -> float:
    """The median of the steps of one turn, in microseconds."""
    if isinstance(contender, Echo):
        return round(percentile(contender.microseconds(), 0.5), 2)
    contender.step()
    if "norm" in contender.results[0]:
        check(contender)
    return round(percentile([time for result in contender.results for time in result["microseconds"]], 0.5), 2)


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        sizes, frames = recorded_step(binaries / "gradsyncd", folder / "recorded")
        all_of_them = started(binaries, folder, [sizes[method] for method in EXCHANGED], frames, stack)
        p50: dict[str, list[float]] = {contender: [] for contender in all_of_them}
        for number in range(-WARM_UP_ROUNDS, rounds):
            found = {
                which: turn(contender) for which, contender in list(all_of_them.items())[:: 1 if number % 2 else -1]
            }
            if number >= 0:
                for contender, times in p50.items():
                    times.append(found[contender])
                figures = ", ".join(f"{contender} {times[-1]:.1f}" for contender, times in p50.items())
                print(f"{name}: round {number + 1}/{rounds}: {figures} us", flush=True)
    return write(name, rounds, sizes, p50)


def more_of(p50: dict[str, list[float]], two: str, one: str) -> list[float]:
    """What two take more than one, round by round."""
    return [round(a - b, 2) for a, b in zip(p50[two], p50[one], strict=True)]


def write(name: str, rounds: int, sizes: dict[str, int], p50: dict[str, list[float]]) -> dict[str, Any]:
    more, bare = more_of(p50, "two_daemons", "one_daemon"), more_of(p50, "two_bare", "one_bare")
    middle = {contender: statistics.median(times) for contender, times in p50.items()}
    ratio = statistics.median(more) / middle["tcp_echo"]
    config = {
        "world_size": WORLD_SIZE,
        "daemons": 2,
        "data_path": "stats",
        "steps_in_a_round": STEPS,
        "rounds": rounds,
        "message_bytes": sizes,
        "shown": {
            "two daemons - one": f"{statistics.median(more):.4g} us",
            "two bare servers - one": f"{statistics.median(bare):.4g} us",
            "(two bare servers - one) / tcp_echo": f"{statistics.median(bare) / middle['tcp_echo']:.3g}",
            "two daemons / two bare servers": f"{middle['two_daemons'] / middle['two_bare']:.3g}",
        },
        "more_samples": more,
        "bare_more_samples": bare,
    }
    bars = [results.Bar("p50: (two daemons - one) / tcp_echo", round(ratio, 3), WANTED)]
    ours = p50["two_daemons"]
    peers = {contender: times for contender, times in p50.items() if contender != "two_daemons"}
    return results.write(name, "us", ours, peers, None, config, bars)
