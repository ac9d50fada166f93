"""Steps of one element by two ranks over two daemons, beside those of one daemon and a bare exchange over TCP.

The echo makes both round trips of a step, with texts as long as those that daemons send: ask and decision, vote and
done. What two daemons take more than one is compared with it.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results
from contenders.stats_step import VALUE
from nodes.daemons import Nodes
from processes import Process, Ranks, Unavailable, listening, private_daemon
from step_empty import percentile

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


def recorded_bytes(binary: Path, folder: Path) -> dict[str, int]:
    """Those of one step of two ranks over two daemons."""
    folder.mkdir()
    with Nodes(binary, folder, 2, "--log-level", "trace", "--log-format", "json") as nodes:
        ranks = Ranks("stats_step", WORLD_SIZE, {"steps": 1}, {}, nodes.environments(1))
        try:
            ranks.step()
            deadline = time.monotonic() + LOG_DEADLINE_S
            while len(found := message_bytes(nodes.log(1))) < len(EXCHANGED):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"of the messages of a step the log has only {found}")
                time.sleep(0.05)
            return found
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
        deadline = time.monotonic() + LOG_DEADLINE_S
        while not port.read_text().endswith("\n"):
            if time.monotonic() > deadline:
                raise Unavailable("bench_echo_tcp does not say its port")
            time.sleep(0.01)
        command = [str(binary), "ask", "127.0.0.2", port.read_text().strip(), str(STEPS), *map(str, sizes)]
        client = Process("bench_echo_tcp", command, {})
        try:
            client.answer()
            yield Echo(client)
        finally:
            client.close()


def check(ranks: Ranks) -> None:
    if any(result["norm"] != VALUE for result in ranks.results):
        raise RuntimeError(f"the norm of {VALUE} is not {VALUE}: {[result['norm'] for result in ranks.results]}")


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    daemon = binaries / "gradsyncd"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        sizes = recorded_bytes(daemon, folder / "recorded")
        (folder / "nodes").mkdir()
        nodes = stack.enter_context(Nodes(daemon, folder / "nodes", 2))
        alone = {"GRADSYNC_ADDRESS": stack.enter_context(private_daemon(daemon, folder))}
        over = Ranks("stats_step", WORLD_SIZE, {"steps": STEPS}, {}, nodes.environments(1))
        stack.callback(over.close)
        one = Ranks("stats_step", WORLD_SIZE, {"steps": STEPS}, alone)
        stack.callback(one.close)
        exchanged = [sizes[method] for method in EXCHANGED]
        both = stack.enter_context(echo_over_tcp(binaries / "bench_echo_tcp", folder / "echo", exchanged))
        first = stack.enter_context(echo_over_tcp(binaries / "bench_echo_tcp", folder / "first", exchanged[:2]))

        def steps(ranks: Ranks) -> list[float]:
            ranks.step()
            check(ranks)
            return [time for result in ranks.results for time in result["microseconds"]]

        contenders = {
            "two_daemons": lambda: steps(over),
            "one_daemon": lambda: steps(one),
            "tcp_echo": both.microseconds,
            "tcp_round_trip": first.microseconds,
        }
        p50: dict[str, list[float]] = {contender: [] for contender in contenders}
        for number in range(-WARM_UP_ROUNDS, rounds):
            for contender, turn in list(contenders.items())[:: 1 if number % 2 else -1]:
                median = round(percentile(turn(), 0.5), 2)
                if number >= 0:
                    p50[contender].append(median)
            if number >= 0:
                figures = ", ".join(f"{contender} {times[-1]:.1f}" for contender, times in p50.items())
                print(f"{name}: round {number + 1}/{rounds}: {figures} us", flush=True)
    return write(name, rounds, sizes, p50)


def write(name: str, rounds: int, sizes: dict[str, int], p50: dict[str, list[float]]) -> dict[str, Any]:
    more = [round(two - one, 2) for two, one in zip(p50["two_daemons"], p50["one_daemon"], strict=True)]
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
            "(two daemons - one) / tcp_round_trip": f"{statistics.median(more) / middle['tcp_round_trip']:.3g}",
        },
        "more_samples": more,
    }
    bars = [results.Bar("p50: (two daemons - one) / tcp_echo", round(ratio, 3), WANTED)]
    ours = p50["two_daemons"]
    peers = {contender: times for contender, times in p50.items() if contender != "two_daemons"}
    return results.write(name, "us", ours, peers, None, config, bars)
