"""What comparing the weights costs while training: a part of them, beside the steps in which one is compared."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

import results
from processes import Ranks, free_port, private_daemon

WORLD_SIZE = 2
WIDTH, LAYERS = 2048, 24
ROWS = 16  # so few that a step is hardly longer than it takes to read the weights: the share is at its largest
EVERY = 1000  # the default of weights_every
WARM_UP_ROUNDS = 5  # in the first steps parts are compared by themselves
WANTED_SHARE = 0.01


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        environment = {
            "TORCHELASTIC_RUN_ID": "bench",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binaries / "gradsyncd", folder)),
        }
        ranks = Ranks("weights_part", WORLD_SIZE, {"width": WIDTH, "layers": LAYERS, "rows": ROWS}, environment)
        stack.callback(ranks.close)
        for _ in range(WARM_UP_ROUNDS):
            ranks.step(), ranks.step()
        count = ranks.results[0]["parts"]
        steps, parts = [], []
        for _ in range(-(-rounds // count) * count):  # names decide which part a tensor is in: all parts equally often
            steps.append(round(ranks.step() * 1e3, 4))
            parts.append(round(ranks.step() * 1e3, 4))
            print(f"{name}: step {steps[-1]:.1f}, part {parts[-1]:.1f} ms", flush=True)
        elements = ranks.results[0]["elements"]
    of_all = [
        sum(parts[first : first + count]) / statistics.median(steps[first : first + count])
        for first in range(0, len(parts), count)
    ]
    share = statistics.median(of_all) / EVERY
    config = {
        "world_size": WORLD_SIZE,
        "elements": elements,
        "rows_in_a_step": ROWS,
        "rounds": len(parts),
        "weights_every": EVERY,
        "shown": {"all parts, in steps": f"{statistics.median(of_all):.3g}"},
    }
    bars = [results.Bar("share of a step", round(share, 6), WANTED_SHARE)]
    return results.write(name, "ms", parts, {"step": steps}, None, config, bars)
