"""Runs the benchmarks and prints a table: `make bench`, or `build/venv/bin/python tests/bench/run.py --only NAME`.

Exits 1 where a benchmark could not run or missed a bar. The bars are in docs/performance.md; those of a floor or a peer
compare with samples of the same run.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attach_again
import declare
import first_step
import instructions
import plan_check
import results
import scatter
import steady
import step
import step_empty
from over_nodes import coordinator as nodes_coordinator
from over_nodes import idle as nodes_idle
from over_nodes import restart as nodes_restart
from over_nodes import step as nodes_step
from over_nodes import step_empty as nodes_step_empty
from over_nodes import wire as nodes_wire
from training_steps import clip_dtensor, observe, trackers, train, weights_part

BINARIES = results.ROOT / "build" / "cpu-release" / "bin"

LARGE = {"wanted_floor_ratio": 1.25}
SMALL = {"wanted_ratio": 4.0}

BENCHMARKS: dict[str, Callable[..., dict[str, Any]]] = {
    "step_fp32_100m": functools.partial(step.run, "step_fp32_100m", "float32", LARGE),
    "step_bf16_100m": functools.partial(step.run, "step_bf16_100m", "bfloat16", LARGE),
    "step_small": functools.partial(
        step.run, "step_small", "float32", SMALL, elements=1_000_000, rounds_factor=8, ready="all"
    ),
    "step_empty": functools.partial(step_empty.run, "step_empty"),
    "first_step": functools.partial(first_step.run, "first_step"),
    "attach_again": functools.partial(attach_again.run, "attach_again"),
    "reduce_scatter_fp32_100m": functools.partial(scatter.run, "reduce_scatter_fp32_100m", 1),
    "hsdp_fp32_100m": functools.partial(scatter.run, "hsdp_fp32_100m", 2),
    "clip_dtensor_2k": functools.partial(clip_dtensor.run, "clip_dtensor_2k", 5000, 3.0),
    "clip_dtensor_small": functools.partial(clip_dtensor.run, "clip_dtensor_small", 64, 4.5),
    "clip_dtensor_2k_nodes": functools.partial(clip_dtensor.run, "clip_dtensor_2k_nodes", 5000, 2.5, nodes=2),
    "train_e2e": functools.partial(
        train.run, "train_e2e", "gradsync", {"wanted_ratio": 1.05, "wanted_floor_ratio": 1.04}
    ),
    "train_e2e_tp": functools.partial(
        train.run, "train_e2e_tp", "gradsync", {"wanted_ratio": 1.0}, tensor_parallel=True
    ),
    "accumulate_8": functools.partial(train.run, "accumulate_8", "gradsync", {}, accumulate=8),
    "observe_e2e": functools.partial(observe.run, "observe_e2e", {"wanted_ratio": 0.96}),
    "weights_part": functools.partial(weights_part.run, "weights_part"),
    "trackers": functools.partial(trackers.run, "trackers"),
    "declare_10k": functools.partial(declare.run_time, "declare_10k"),
    "plan_check": functools.partial(plan_check.run, "plan_check"),
    "daemon_memory": functools.partial(declare.run_memory, "daemon_memory"),
    "steady_faults": functools.partial(steady.run_faults, "steady_faults"),
    "idle_cpu": functools.partial(steady.run_idle, "idle_cpu"),
    "instructions": functools.partial(instructions.run, "instructions"),
    "step_empty_nodes": functools.partial(nodes_step_empty.run, "step_empty_nodes"),
    "coordinator_us": functools.partial(nodes_coordinator.run, "coordinator_us"),
    "nodes_restart": functools.partial(nodes_restart.run, "nodes_restart", "stats_step", 3.0),
    "nodes_reattach": functools.partial(nodes_restart.run, "nodes_reattach", "travelling_step", 1.0),
    "nodes_aborted": functools.partial(nodes_restart.run_aborted, "nodes_aborted"),
    "nodes_idle_cpu": functools.partial(nodes_idle.run, "nodes_idle_cpu"),
    "wire_fp32_100m": functools.partial(nodes_wire.run, "wire_fp32_100m"),
    "nodes_fp32_100m": functools.partial(nodes_step.run, "nodes_fp32_100m", "float32"),
    "nodes_bf16_100m": functools.partial(nodes_step.run, "nodes_bf16_100m", "bfloat16"),
    "nodes_train_e2e": functools.partial(train.run, "nodes_train_e2e", "gradsync", {"wanted_ratio": 1.0}, nodes=2),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="run this one (may be repeated)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of all contenders in turn (default 15)")
    parser.add_argument(
        "--binaries", type=Path, default=BINARIES, help="where gradsyncd and the bare servers and loops are"
    )
    options = parser.parse_args()
    if options.rounds < 7:
        parser.error("--rounds must be at least 7: fewer say nothing on a shared machine")
    # DeepSpeed calls ninja by name, from the environment it is installed in.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done, failed = [], []
    for name in options.only or BENCHMARKS:
        begin = time.monotonic()
        try:
            done.append(BENCHMARKS[name](rounds=options.rounds, binaries=options.binaries))
        except results.Skipped as reason:
            print(f"{name}: skipped: {reason}", flush=True)
        except Exception as error:  # One benchmark that cannot run must not take the others' results with it.
            failed.append(name)
            print(f"{name}: FAILED: {error}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    if done:
        print()
        print(results.table(done))
        print(f"\nresults: {results.FOLDER.relative_to(results.ROOT)}/<benchmark>.json")
    missed = results.missed(done)
    for line in missed:
        print(f"missed: {line}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
