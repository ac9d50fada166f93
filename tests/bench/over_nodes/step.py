"""A step of two daemons with two ranks each, clip active, beside a bare floor and torch's all-reduce over four ranks.

The floor sums the ranks of a node, runs a bare ring of Gloo between the nodes, and writes out, bucket by bucket. In
bfloat16 that rounds at every hop, which is what `partial_sums="bfloat16"` asks for (`ours_every_hop`). A second floor,
`floor_once`, sends sums as float32 and rounds each once, as gradsync does without that option. Each has the floor that
rounds as often as it does.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import results
from gradients import MAX_NORM, compare, dtype_of, expected, result, tensor_sizes
from over_nodes.daemons import Nodes
from over_nodes.wire import Pair
from processes import Ranks, Stepping, alternate
from step import TOLERANCE
from threads import cpu_seconds_of

NODES = 2
PER_NODE = 2
WORLD_SIZE = NODES * PER_NODE
BUCKET_BYTES = 25 << 20
WARM_UP_ROUNDS = 2
BFLOAT16_ULP = 2**-8  # of a summand near 1
EVERY_HOP = "ours_every_hop"
WANTED_FLOOR_RATIO = 1.2
WANTED_RATIO = 1.5
WANTED_CPU_RATIO = 0.7


class Side:
    """Ranks, and the daemons that work for them. Keeps the CPU seconds of all these processes, step by step."""

    def __init__(self, ranks: Ranks, daemons: Sequence[int]) -> None:
        self.ranks = ranks
        self.cpu_seconds: list[float] = []
        self._daemons = daemons

    def step(self) -> float:
        self.ranks.fill()
        before = cpu_seconds_of(self._daemons)
        seconds = self.ranks.step_filled()
        self.cpu_seconds.append(self.ranks.cpu_seconds + cpu_seconds_of(self._daemons) - before)
        return seconds


def started_floor(
    binaries: Path, folder: Path, dtype: str, elements: int, threads: int, stack: contextlib.ExitStack
) -> Pair:
    binary = binaries / "bench_gloo_step"
    if not binary.exists():
        raise results.Skipped("Gloo was not there when the benchmarks were built (`make setup` installs it)")
    store = folder / f"store-{dtype}"
    store.mkdir()
    floor = Pair(binary, store, [dtype, elements, BUCKET_BYTES, threads])
    floor.start(stack)
    return floor


def started_sides(
    name: str, binaries: Path, folder: Path, dtype: str, elements: int, stack: contextlib.ExitStack
) -> dict[str, Side]:
    nodes = stack.enter_context(Nodes(binaries / "gradsyncd", folder, NODES))
    threads = str(max(1, len(os.sched_getaffinity(0)) // WORLD_SIZE))
    environment = {"BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo"}
    ours: list[tuple[str, str, Sequence[int], dict[str, str]]] = [("ours", "gradsync_raw", nodes.pids, {})]
    if dtype == "bfloat16":
        ours.append((EVERY_HOP, "gradsync_raw", nodes.pids, {"partial_sums": "bfloat16"}))
    sides = {}
    for contender, module, daemons, options in (*ours, ("torch_gloo", "torch_gloo", [], {})):
        print(f"{name}: starting {contender}", flush=True)
        arguments = {"elements": elements, "dtype_name": dtype, **options}
        ranks = Ranks(module, WORLD_SIZE, arguments, environment, nodes.environments(PER_NODE))
        stack.callback(ranks.close)
        sides[contender] = Side(ranks, daemons)
    return sides


def run(name: str, dtype: str, rounds: int, binaries: Path, elements: int = 100_000_000) -> dict[str, Any]:
    right = result(*expected(WORLD_SIZE, dtype_of(dtype), elements))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        threads = max(1, len(os.sched_getaffinity(0)) // NODES)
        floors = {"floor": started_floor(binaries, folder, dtype, elements, threads, stack)}
        if dtype == "bfloat16":
            floors["floor_once"] = started_floor(binaries, folder, "bfloat16_once", elements, threads, stack)
        sides = started_sides(name, binaries, folder, dtype, elements, stack)

        # What rounds at every hop is off by the summands' last bit in some elements, also where these cancel out.
        hop = BFLOAT16_ULP * MAX_NORM / right["norm"]
        hops = {"torch_gloo": hop, EVERY_HOP: hop} if dtype == "bfloat16" else {}

        def look(_: int) -> None:
            for contender, side in sides.items():
                for rank, found in enumerate(side.ranks.results):
                    compare(f"{contender} rank {rank}", found, right, TOLERANCE[dtype], hops.get(contender, 1e-12))

        contenders: dict[str, Stepping] = {**sides, **floors}
        samples = alternate(name, contenders, rounds, WARM_UP_ROUNDS, look)
    cpu = {
        contender: round(statistics.median(each.cpu_seconds[WARM_UP_ROUNDS:]) * 1e3, 1)
        for contender, each in {**sides, **floors}.items()
    }
    return write(name, dtype, elements, rounds, samples, cpu)


def write(
    name: str, dtype: str, elements: int, rounds: int, samples: dict[str, list[float]], cpu: dict[str, float]
) -> dict[str, Any]:
    middle = {contender: statistics.median(times) for contender, times in samples.items()}
    cpu_ratio = round(cpu["ours"] / cpu["torch_gloo"], 3)
    config = {
        "daemons": NODES,
        "world_size": WORLD_SIZE,
        "elements": elements,
        "tensors": len(tensor_sizes(elements)),
        "dtype": dtype,
        "max_norm": MAX_NORM,
        "clip_active": True,
        "torch": torch.__version__,
        "bucket_mib_of_peer_and_floor": BUCKET_BYTES >> 20,
        "rounds": rounds,
        "cpu_ms_of_all_processes": cpu,
        "shown": {f"CPU of all processes, {contender}": f"{ms:.4g} ms" for contender, ms in cpu.items()},
    }
    pairs = [("ours", "floor")] if dtype == "float32" else [("ours", "floor_once"), (EVERY_HOP, "floor")]
    bars = [
        *(
            results.Bar(f"{one} / {other}", round(middle[one] / middle[other], 3), WANTED_FLOOR_RATIO)
            for one, other in pairs
        ),
        results.Bar("torch_gloo / ours", round(middle["torch_gloo"] / middle["ours"], 3), WANTED_RATIO, at_least=True),
        results.Bar("CPU of all processes: ours / torch_gloo", cpu_ratio, WANTED_CPU_RATIO),
    ]
    peers = {peer: samples[peer] for peer in ("torch_gloo", EVERY_HOP, "floor_once") if peer in samples}
    return results.write(name, "ms", samples["ours"], peers, samples["floor"], config, bars)
