"""The first step of a fresh daemon and fresh ranks, beside their tenth."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

import results
from gradients import MAX_NORM
from processes import Ranks, private_daemon

WORLD_SIZE = 2
ELEMENTS = 100_000_000
STEPS = 10
WANTED = 2.0


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    by_step: list[list[float]] = [[] for _ in range(STEPS)]
    for number in range(rounds):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
            environment = {"GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binaries / "gradsyncd", folder))}
            arguments = {"elements": ELEMENTS, "dtype_name": "float32"}
            ranks = Ranks("gradsync_raw", WORLD_SIZE, arguments, environment)
            stack.callback(ranks.close)
            for times in by_step:
                times.append(round(ranks.step() * 1e3, 4))
        print(
            f"{name}: round {number + 1}/{rounds}: {', '.join(f'{times[-1]:.1f}' for times in by_step)} ms", flush=True
        )
    ratio = statistics.median(first / tenth for first, tenth in zip(by_step[0], by_step[-1], strict=True))
    config = {
        "world_size": WORLD_SIZE,
        "elements": ELEMENTS,
        "dtype": "float32",
        "max_norm": MAX_NORM,
        "rounds": rounds,
        "medians_of_steps_ms": [round(statistics.median(times), 3) for times in by_step],
    }
    bars = [results.Bar("first / tenth step", round(ratio, 3), WANTED)]
    return results.write(name, "ms", by_step[0], {"tenth_step": by_step[-1]}, None, config, bars)
