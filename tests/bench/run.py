"""Runs the benchmarks and prints a table: `make bench`, or `build/venv/bin/python tests/bench/run.py --only NAME`."""

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
import clip_dtensor
import declare
import first_step
import results
import scatter
import steady
import step
import step_empty
import train

BINARIES = results.ROOT / "build" / "cpu-release" / "bin"

FP32 = {"wanted_ratios": {"torch_gloo": 7.0, "deepspeed_shm": 4.0}, "wanted_floor_ratio": 1.35}
BF16 = {"wanted_ratios": {"torch_gloo": 6.0, "deepspeed_shm": 3.5}, "wanted_floor_ratio": 1.35}
SMALL = {"wanted_ratio": 8.0}

BENCHMARKS: dict[str, Callable[..., dict[str, Any]]] = {
    "step_fp32_100m": functools.partial(step.run, "step_fp32_100m", "float32", FP32),
    "step_bf16_100m": functools.partial(step.run, "step_bf16_100m", "bfloat16", BF16),
    "step_small": functools.partial(
        step.run, "step_small", "float32", SMALL, elements=1_000_000, rounds_factor=8, ready="all"
    ),
    "step_empty": functools.partial(step_empty.run, "step_empty"),
    "first_step": functools.partial(first_step.run, "first_step"),
    "attach_again": functools.partial(attach_again.run, "attach_again"),
    "reduce_scatter_fp32_100m": functools.partial(scatter.run, "reduce_scatter_fp32_100m", 1, 8.0),
    "hsdp_fp32_100m": functools.partial(scatter.run, "hsdp_fp32_100m", 2, 5.0),
    "clip_dtensor_2k": functools.partial(clip_dtensor.run, "clip_dtensor_2k", 5000, 3.0),
    "clip_dtensor_small": functools.partial(clip_dtensor.run, "clip_dtensor_small", 64, 5.0),
    "train_e2e": functools.partial(train.run, "train_e2e", "gradsync", 1.1),
    "accumulate_8": functools.partial(train.run, "accumulate_8", "gradsync", 1.0, accumulate=8),
    "observe_e2e": functools.partial(train.run, "observe_e2e", "observe", round(1 / 1.03, 3)),
    "declare_10k": functools.partial(declare.run_time, "declare_10k"),
    "daemon_memory": functools.partial(declare.run_memory, "daemon_memory"),
    "steady_faults": functools.partial(steady.run_faults, "steady_faults"),
    "idle_cpu": functools.partial(steady.run_idle, "idle_cpu"),
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
        except Exception as error:  # One benchmark that cannot run must not take the others' results with it.
            failed.append(name)
            print(f"{name}: FAILED: {error}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    if done:
        print()
        print(results.table(done))
        print(f"\nresults: {results.FOLDER.relative_to(results.ROOT)}/<benchmark>.json")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
