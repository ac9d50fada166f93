"""What the daemon takes where nothing is new: page faults and allocations of a steady step, CPU while ranks idle."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from processes import Ranks, Unavailable, started_daemon
from threads import allocations_in, empty_allocations, threads_of

WORLD_SIZE = 2
ELEMENTS = 20_000_000  # 40 tensors, some buckets
WARM_UP_STEPS = 20
STEPS = 100
LANE_ALLOCATIONS = 16  # a step: its report, and what carries a report of each command to the io thread
ALLOCATIONS = 128  # a step, by the other threads: messages, replies and commands, whatever the tensors and elements
IDLE_S = 60
WANTED_IDLE_PERCENT = 0.1


def is_lane(name: str) -> bool:
    return name.startswith("lane:")


def run_faults(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    counter = binaries / "libbench_allocations.so"
    if not counter.exists():
        raise Unavailable(f"{counter} is missing: build it with `make build`")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        file = folder / "allocations"
        empty_allocations(file)
        counting = {"LD_PRELOAD": str(counter), "BENCH_ALLOCATIONS": str(file)}
        daemon = stack.enter_context(started_daemon(binaries / "gradsyncd", folder, counting))
        arguments = {"elements": ELEMENTS, "dtype_name": "float32"}
        ranks = Ranks("gradsync_raw", WORLD_SIZE, arguments, {"GRADSYNC_ADDRESS": daemon.address})
        stack.callback(ranks.close)
        samples = [round(ranks.step() * 1e3, 4) for _ in range(WARM_UP_STEPS)]
        threads, allocations = threads_of(daemon.pid), allocations_in(file)
        if sum(allocations.values()) == 0:
            raise RuntimeError("the counter of allocations counted none at all: it is not in the daemon")
        samples = [round(ranks.step() * 1e3, 4) for _ in range(STEPS)]
        threads_after, allocations_after = threads_of(daemon.pid), allocations_in(file)
    by_thread: dict[str, dict[str, float]] = {}
    for thread, after in threads_after.items():
        row = by_thread.setdefault(after.name, {"faults": 0, "allocations": 0, "cpu_us_per_step": 0})
        row["faults"] += after.faults - threads[thread].faults
        row["allocations"] += allocations_after.get(thread, 0) - allocations.get(thread, 0)
        row["cpu_us_per_step"] += round((after.cpu_ns - threads[thread].cpu_ns) / 1e3 / STEPS, 1)
    for thread_name, row in sorted(by_thread.items()):
        print(f"{name}: {thread_name}: {row} in {STEPS} steps", flush=True)
    lane = [row for thread_name, row in by_thread.items() if is_lane(thread_name)]
    others = [row for thread_name, row in by_thread.items() if not is_lane(thread_name)]
    faults = sum(row["faults"] for row in others)
    config = {
        "world_size": WORLD_SIZE,
        "elements": ELEMENTS,
        "steps": STEPS,
        "threads": by_thread,
        "shown": {"other threads: faults a step": f"{faults / STEPS:.4g}"},
    }
    bars = [
        results.Bar(f"lane: faults in {STEPS} steps", sum(row["faults"] for row in lane), 0),
        results.Bar("lane: allocations a step", sum(row["allocations"] for row in lane) / STEPS, LANE_ALLOCATIONS),
        results.Bar(
            "other threads: allocations a step", sum(row["allocations"] for row in others) / STEPS, ALLOCATIONS
        ),
    ]
    return results.write(name, "ms", samples, {}, None, config, bars)


def run_idle(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        daemon = stack.enter_context(started_daemon(binaries / "gradsyncd", folder))
        ranks = Ranks("empty_step", WORLD_SIZE, {"steps": 10}, {"GRADSYNC_ADDRESS": daemon.address})
        stack.callback(ranks.close)
        ranks.step()
        before, begin = threads_of(daemon.pid), time.monotonic()
        time.sleep(IDLE_S)
        after, seconds = threads_of(daemon.pid), time.monotonic() - begin
    by_thread: dict[str, float] = {}  # the log's thread bears the name of the main one
    for thread, found in after.items():
        cpu_ns = found.cpu_ns - (before[thread].cpu_ns if thread in before else 0)
        by_thread[found.name] = by_thread.get(found.name, 0.0) + cpu_ns / 1e7 / seconds
    percent = sum(by_thread.values())
    config = {"world_size": WORLD_SIZE, "seconds": round(seconds, 2), "percent_by_thread": by_thread}
    bars = [results.Bar("of one CPU", round(percent, 5), WANTED_IDLE_PERCENT, unit="%")]
    return results.write(name, "% of one CPU", [round(percent, 5)], {}, None, config, bars)
