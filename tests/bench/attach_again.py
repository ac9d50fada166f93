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
    """In each round both ranks take a step, and are killed while they are attached; two others take their places.

    Those were started before: the time that Python needs to start is not the daemon's.
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

        before: list[Process] = []
        for number in range(-1, rounds):  # the first are not attached again
            ranks = [trainer(rank) for rank in range(WORLD_SIZE)]
            for process in before:
                process.kill()
            for process in ranks:
                process.ask(f"step {time.monotonic_ns()}")
            answers = [json.loads(process.answer()) for process in ranks]
            if any(answer["result"]["mean"] != 1.5 for answer in answers):
                raise RuntimeError(f"the mean of 1 and 2 is not 1.5: {answers}")
            seconds = max(float(answer["seconds"]) for answer in answers)
            before = ranks
            if number >= 0:
                samples.append(round(seconds, 4))
                print(f"{name}: round {number + 1}/{rounds}: {seconds:.3f} s", flush=True)
    config = {"world_size": WORLD_SIZE, "rounds": rounds}
    bars = [results.Bar("slowest", max(samples), WANTED_S, unit="s")]
    return results.write(name, "s", samples, {}, None, config, bars)
