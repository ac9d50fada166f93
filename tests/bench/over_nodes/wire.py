"""The sum of 100 M gradients over two processes by TCP: the transfer program over the socket wire, and a Gloo ring.

Neither has a daemon, a client or an engine around it. What both take while they do nothing is counted at the end.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from over_nodes.step_empty import text_in
from processes import START_DEADLINE_S, STEP_LEAD_NS, Process, Unavailable
from threads import threads_of

ADDRESS = "127.0.0.1"
ELEMENTS = 100_000_000
BUCKET_BYTES = 25 << 20
# The most of a block, and of staging memory: as a job has them, and so few blocks that they stay in a cache.
STAGING = {"wire": (1 << 20, 64 << 20), "wire_8_mib": (1 << 20, 8 << 20)}
WARM_UP_ROUNDS = 2
IDLE_S = 20
LAST_LOOK_S = 2  # a wire looks once more at its connections when the last message has come
WANTED_CPU_RATIO = 1.75
WANTED_WAKEUPS = 0.1


class Pair:
    """Two nodes, each a process of its own."""

    def __init__(self, binary: Path, place: Path, arguments: list[int | str]) -> None:
        """`place`: where node 0 says how it is reached."""
        if not binary.exists():
            raise Unavailable(f"{binary} is missing: build it with `make build`")
        self.cpu_seconds: list[float] = []
        self._nodes: list[Process] = []
        self._arguments = [ADDRESS, str(place), *map(str, arguments)]
        self._binary = binary
        self._place = place

    def start(self, stack: contextlib.ExitStack) -> None:
        for node in range(2):
            process = Process(self._binary.name, [str(self._binary), str(node), *self._arguments], {})
            stack.callback(process.close)
            self._nodes.append(process)
            if node == 0 and not self._place.is_dir():
                text_in_when_there(self._place)
        for process in self._nodes:
            process.answer(START_DEADLINE_S)

    def step(self) -> float:
        """What the slower node took."""
        self._ask("fill")
        answers = [json.loads(line) for line in self._ask(f"step {time.monotonic_ns() + STEP_LEAD_NS}")]
        self.cpu_seconds.append(sum(answer["cpu_seconds"] for answer in answers))
        return max(float(answer["seconds"]) for answer in answers)

    def counts(self) -> tuple[int, int]:
        """CPU nanoseconds and sleeps of all threads of both nodes, so far."""
        cpu = sum(thread.cpu_ns for process in self._nodes for thread in threads_of(process.pid).values())
        return cpu, sum(sleeps_of(process.pid) for process in self._nodes)

    def _ask(self, line: str) -> list[str]:
        for process in self._nodes:
            process.ask(line)
        return [process.answer() for process in self._nodes]


def text_in_when_there(place: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while not place.exists():
        if time.monotonic() > deadline:
            raise Unavailable(f"node 0 does not listen: {place} is not there")
        time.sleep(0.01)
    text_in(place)


def sleeps_of(pid: int) -> int:
    """How often the threads of a process went to sleep."""
    lines = [
        line for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "status").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def idle(pairs: dict[str, Pair]) -> dict[str, dict[str, float]]:
    """By contender: microseconds of CPU and wake-ups, of both nodes together, in a second without any work."""
    time.sleep(LAST_LOOK_S)
    before = {name: pair.counts() for name, pair in pairs.items()}
    time.sleep(IDLE_S)
    after = {name: pair.counts() for name, pair in pairs.items()}
    return {
        name: {
            "cpu_us_per_s": round((after[name][0] - before[name][0]) / 1e3 / IDLE_S, 1),
            "wakeups_per_s": round((after[name][1] - before[name][1]) / IDLE_S, 1),
        }
        for name in pairs
    }


def started(binaries: Path, folder: Path, stack: contextlib.ExitStack) -> dict[str, Pair]:
    gloo = binaries / "bench_gloo_ring"
    if not gloo.exists():
        raise results.Skipped("Gloo was not there when the benchmarks were built (`make setup` installs it)")
    (folder / "store").mkdir()
    pairs = {"gloo_ring": Pair(gloo, folder / "store", [ELEMENTS])}
    for name, (block, staging) in STAGING.items():
        pairs[name] = Pair(binaries / "bench_wire", folder / name, [ELEMENTS, BUCKET_BYTES, block, staging])
    for pair in pairs.values():
        pair.start(stack)
    return pairs


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    samples: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        pairs = started(binaries, folder, stack)
        for number in range(-WARM_UP_ROUNDS, rounds):
            found = {which: pair.step() * 1e3 for which, pair in list(pairs.items())[:: 1 if number % 2 else -1]}
            figures = ", ".join(f"{which} {found[which]:.1f}" for which in pairs)
            print(f"{name}: round {number + 1}/{rounds}: {figures} ms", flush=True)
            for which, milliseconds in found.items() if number >= 0 else ():
                samples.setdefault(which, []).append(round(milliseconds, 4))
        idling = idle(pairs)
        cpu = {
            which: round(statistics.median(pair.cpu_seconds[WARM_UP_ROUNDS:]) * 1e3, 1) for which, pair in pairs.items()
        }
    ours = samples.pop("wire")
    cpu_ratio = round(cpu["wire"] / cpu["gloo_ring"], 3)
    config = {
        "nodes": 2,
        "elements": ELEMENTS,
        "dtype": "float32",
        "bucket_bytes": BUCKET_BYTES,
        "block_and_staging_bytes": STAGING,
        "rounds": rounds,
        "cpu_ms_of_both_nodes": cpu,
        "idle": idling,
        "idle_s": IDLE_S,
        "shown": {
            **{f"CPU of both nodes, {which}": f"{milliseconds:.4g} ms" for which, milliseconds in cpu.items()},
            **{
                f"idle, {which}": f"{found['cpu_us_per_s']:g} us of CPU, {found['wakeups_per_s']:g} wake-ups a second"
                for which, found in idling.items()
            },
        },
    }
    bars = [
        results.Bar("CPU of both nodes: ours / gloo_ring", cpu_ratio, WANTED_CPU_RATIO),
        results.Bar("wake-ups of an idle wire in a second", idling["wire"]["wakeups_per_s"], WANTED_WAKEUPS),
    ]
    return results.write(name, "ms", ours, samples, None, config, bars)
