"""How soon steps go on by themselves when a daemon was killed and started again: a member's, and the coordinator's."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from contenders.stats_step import VALUE
from over_nodes.daemons import Nodes
from processes import HERE, START_DEADLINE_S, Process

LOCAL_WORLD_SIZE = 2
NODES = 2
WORLD_SIZE = LOCAL_WORLD_SIZE * NODES
KILLED = {"member": 1, "coordinator": 0}
STEPPING_S = 0.2  # before the kill, which so hits a step
WANTED_S = 3.0


def next_step(processes: list[Process]) -> list[dict[str, Any]]:
    """What the ranks say when a step of a later epoch is done."""
    answers = [json.loads(process.answer())["result"] for process in processes]
    if {answer["norm"] for answer in answers} != {VALUE} or len({answer["epoch"] for answer in answers}) != 1:
        raise RuntimeError(f"the ranks do not agree on norm {VALUE} and an epoch: {answers}")
    return answers


def ask_all(processes: list[Process]) -> None:
    for process in processes:
        process.ask(f"step {time.monotonic_ns()}")


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    samples: dict[str, list[float]] = {which: [] for which in KILLED}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        nodes = stack.enter_context(Nodes(binaries / "gradsyncd", folder, NODES))
        command = [sys.executable, str(HERE / "rank.py"), "stats_step"]
        ranks = []
        for rank, environment in enumerate(nodes.environments(LOCAL_WORLD_SIZE)):
            arguments = [str(rank), str(WORLD_SIZE), json.dumps({"until_again": True})]
            ranks.append(Process(f"rank {rank}", [*command, *arguments], environment))
            stack.callback(ranks[-1].close)
        for process in ranks:
            process.answer(START_DEADLINE_S)
        ask_all(ranks)
        next_step(ranks)
        for number in range(rounds):
            for which, node in KILLED.items():
                ask_all(ranks)
                time.sleep(STEPPING_S)
                begin = time.monotonic_ns()
                nodes.kill_and_start_again(node)
                done = max(answer["done_ns"] for answer in next_step(ranks))
                samples[which].append(round((done - begin) / 1e9, 4))
            figures = ", ".join(f"{which} {times[-1]:.3f}" for which, times in samples.items())
            print(f"{name}: round {number + 1}/{rounds}: {figures} s", flush=True)
    config = {"world_size": WORLD_SIZE, "daemons": NODES, "rounds": rounds}
    bars = [results.Bar(f"slowest, {which}", max(times), WANTED_S, unit="s") for which, times in samples.items()]
    return results.write(name, "s", samples["member"], {"coordinator": samples["coordinator"]}, None, config, bars)
