"""What 10,000 tensors cost: the time of `declare`, and the daemon's memory beyond the arenas."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results
from processes import Daemon, Ranks, started_daemon
from threads import memory_beyond_arenas

WORLD_SIZE = 2
TENSORS = 10_000
WARM_UP_ROUNDS = 1
WANTED_S = 0.5
WANTED_MIB = 64


@contextlib.contextmanager
def declaring(binaries: Path) -> Iterator[tuple[Daemon, Ranks]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        daemon = stack.enter_context(started_daemon(binaries / "gradsyncd", folder))
        ranks = Ranks("declaration", WORLD_SIZE, {"tensors": TENSORS}, {"GRADSYNC_ADDRESS": daemon.address})
        stack.callback(ranks.close)
        yield daemon, ranks


def check(ranks: Ranks) -> None:
    if any(result["counted_elements"] != TENSORS * 100 for result in ranks.results):
        raise RuntimeError(f"a step of what was declared counts {ranks.results}")


def run_time(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    samples = []
    with declaring(binaries) as (_, ranks):
        for number in range(-WARM_UP_ROUNDS, rounds):
            seconds = ranks.step()
            check(ranks)
            if number >= 0:
                samples.append(round(seconds, 4))
                print(f"{name}: round {number + 1}/{rounds}: {seconds:.3f} s", flush=True)
    config = {"world_size": WORLD_SIZE, "tensors": TENSORS, "elements_per_tensor": 100, "rounds": rounds}
    bars = [results.Bar("slowest round", max(samples), WANTED_S, unit="s")]
    return results.write(name, "s", samples, {}, None, config, bars)


def run_memory(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    """Each round declares anew in a job of its own, after the one before has left: what stays behind adds up."""
    samples = []
    with declaring(binaries) as (daemon, ranks):
        before = memory_beyond_arenas(daemon.pid)
        for number in range(rounds):
            ranks.step()
            check(ranks)
            samples.append(round(memory_beyond_arenas(daemon.pid), 2))
            print(f"{name}: round {number + 1}/{rounds}: {samples[-1]:.1f} MiB", flush=True)
    config = {
        "world_size": WORLD_SIZE,
        "tensors": TENSORS,
        "elements_per_tensor": 100,
        "rounds": rounds,
        "before_the_first_mib": round(before, 2),
    }
    bars = [results.Bar("largest", max(samples), WANTED_MIB, unit="MiB")]
    return results.write(name, "MiB", samples, {}, None, config, bars)
