"""What the coordinator of a job costs: CPU of the daemon of rank 0 per step, and the machine with its codec alone.

From both follows where a star ends: at the number of nodes for which the coordinator computes a tenth of a step.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import results
from over_nodes.daemons import Nodes
from over_nodes.step_empty import check
from processes import Ranks, Unavailable
from threads import threads_of

NODES = (1, 2, 4, 8)
STEPS = 500  # in a turn
WARM_UP_ROUNDS = 1
MACHINE_NODES = (2, 4, 8, 64, 256, 1024)
MACHINE_LAYERS = (1, 100)
MACHINE_STEPS = 200
SITES = 8  # of a node with so many GPUs whose gradients travel
SITES_NODES = (8, 64, 256, 512)
SITES_STEPS = 40
SHORTEST_STEPS_MS = (100, 1000)
SHARE = 0.1  # of the shortest step


class Star:
    """A job with one rank on each of so many nodes."""

    def __init__(self, binary: Path, folder: Path, count: int, stack: contextlib.ExitStack) -> None:
        folder.mkdir()
        self._nodes = stack.enter_context(Nodes(binary, folder, count))
        self._ranks = Ranks("stats_step", count, {"steps": STEPS}, {}, self._nodes.environments(1))
        stack.callback(self._ranks.close)

    def microseconds(self) -> float:
        """CPU of all threads of the daemon of rank 0, for one step."""
        before = threads_of(self._nodes.pid(0))
        self._ranks.step()
        after = threads_of(self._nodes.pid(0))
        check(self._ranks)
        return sum(found.cpu_ns - before[thread].cpu_ns for thread, found in after.items()) / 1e3 / STEPS


def machine_alone(
    binary: Path, layers: int, sites: int = 1, nodes: tuple[int, ...] = MACHINE_NODES, steps: int = MACHINE_STEPS
) -> list[dict[str, float]]:
    """The lines of `bench_coordinator`."""
    if not binary.exists():
        raise Unavailable(f"{binary} is missing: build it with `make build`")
    command = list(map(str, [binary, steps, layers, sites, *nodes]))
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def each_other_node(by_nodes: dict[int, float], nodes: int) -> float:
    """What each further node costs the coordinator."""
    return (by_nodes[nodes] - by_nodes[1]) / (nodes - 1)


def of_layers(us_per_node: float, machine: dict[int, list[dict[str, float]]], layers: int) -> float:
    """The same with the sums of so many layers in the messages: links cost as before, machine and codec more."""
    fewest = min(machine)
    return us_per_node + machine_us(machine[layers]) - machine_us(machine[fewest])


def machine_us(lines: list[dict[str, float]]) -> float:
    """What each other node costs machine and codec, at the most nodes that were measured with links too."""
    [found] = [line["step"] / (line["nodes"] - 1) for line in lines if line["nodes"] == max(NODES)]
    return found


def star_ends(us_per_node: float, step_ms: float) -> int:
    """The most nodes for which the coordinator computes no longer than its share of a step."""
    return int(SHARE * step_ms * 1e3 / us_per_node)


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    samples: dict[int, list[float]] = {count: [] for count in NODES}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        stars = {count: Star(binaries / "gradsyncd", folder / f"{count}", count, stack) for count in NODES}
        for number in range(-WARM_UP_ROUNDS, rounds):
            found = {count: star.microseconds() for count, star in list(stars.items())[:: 1 if number % 2 else -1]}
            if number >= 0:
                for count, microseconds in found.items():
                    samples[count].append(round(microseconds, 2))
                figures = ", ".join(f"{count}: {samples[count][-1]:.1f}" for count in NODES)
                print(f"{name}: round {number + 1}/{rounds}: us a step by nodes: {figures}", flush=True)
    bench = binaries / "bench_coordinator"
    machine = {layers: machine_alone(bench, layers) for layers in MACHINE_LAYERS}
    of_sites = {layers: machine_alone(bench, layers, SITES, SITES_NODES, SITES_STEPS) for layers in MACHINE_LAYERS}
    return write(name, rounds, samples, machine, of_sites)


def write(
    name: str,
    rounds: int,
    samples: dict[int, list[float]],
    machine: dict[int, list[dict[str, float]]],
    of_sites: dict[int, list[dict[str, float]]],
) -> dict[str, Any]:
    middle = {count: statistics.median(times) for count, times in samples.items()}
    largest = max(NODES)
    each = [round((many - one) / (largest - 1), 2) for many, one in zip(samples[largest], samples[1], strict=True)]
    shown = {f"each other node of {count}": f"{each_other_node(middle, count):.4g} us" for count in NODES if count > 1}
    for what, measured in ("", machine), (f" of {SITES} sites", of_sites):
        for layers, lines in measured.items():
            figures = ", ".join(f"{line['nodes']:g}: {line['step'] / (line['nodes'] - 1):.3g}" for line in lines)
            shown[f"machine and codec, {layers} layers, us a node{what}"] = figures
    for layers in machine:
        us = of_layers(statistics.median(each), machine, layers)
        ends = ", ".join(f"{step_ms} ms: {star_ends(us, step_ms)}" for step_ms in SHORTEST_STEPS_MS)
        shown[f"nodes that take {SHARE:.0%} of a step, {layers} layers"] = ends
    config = {
        "ranks_of_a_node": 1,
        "steps_in_a_round": STEPS,
        "rounds": rounds,
        "us_of_a_step_by_nodes": middle,
        "machine_alone": machine,
        "machine_alone_of_sites": of_sites,
        "shown": shown,
        "samples_by_nodes": samples,
    }
    return results.write(name, "us", each, {}, None, config, [])
