"""How soon a trainer that was killed and started again is attached: from its `connect` to the answer of `attach`."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from processes import HERE, Process, private_daemon

WORLD_SIZE = 2
WANTED_S = 1.0


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    """Rank 0 stays attached; in each round rank 1 is killed between two steps, and another process takes its place.

    That one was started before: the time that Python needs to start is not the daemon's.
    """
    samples = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        environment = {"GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binaries / "gradsyncd", folder))}

        def trainer(rank: int) -> Process:
            command = [sys.executable, str(HERE / "rank.py"), "attaching", str(rank), str(WORLD_SIZE), "{}"]
            process = Process(f"rank {rank}", command, environment)
            stack.callback(process.close)
            process.answer()
            return process

        survivor, second = trainer(0), trainer(1)
        epoch = 0
        for number in range(-1, rounds):  # nobody is attached again in the first
            for process in (survivor, second):
                process.ask(f"step {time.monotonic_ns()}")
            answers = [json.loads(process.answer()) for process in (survivor, second)]
            found = [(answer["result"]["mean"], answer["result"]["epoch"]) for answer in answers]
            epoch = found[0][1] if number < 0 else epoch + 1
            if found != [(1.5, epoch)] * WORLD_SIZE:
                raise RuntimeError(f"mean and epoch should be {(1.5, epoch)} on all ranks: {found}")
            if number >= 0:
                samples.append(round(float(answers[1]["seconds"]), 4))
                print(f"{name}: round {number + 1}/{rounds}: {samples[-1]:.4f} s", flush=True)
            standby = trainer(1)
            second.kill()
            second = standby
    config = {"world_size": WORLD_SIZE, "rounds": rounds}
    bars = [results.Bar("slowest", max(samples), WANTED_S, unit="s")]
    return results.write(name, "s", samples, {}, None, config, bars)
