"""How soon steps go on by themselves: when a daemon of two was killed and started again, a member's or the
coordinator's, and when an attempt was aborted whose gradients travelled between four daemons.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from contenders import stats_step, travelling_step
from over_nodes.daemons import Nodes
from processes import HERE, START_DEADLINE_S, Process

LOCAL_WORLD_SIZE = 2
NODES = 2
WORLD_SIZE = LOCAL_WORLD_SIZE * NODES
KILLED = {"member": 1, "coordinator": 0}
STEPPING_S = 0.2  # before the kill, which so hits a step
ABORTED_NODES = 4
WANTED_REBUILT_S = 0.5
NORMS = {"stats_step": stats_step.VALUE, "travelling_step": travelling_step.norm(WORLD_SIZE)}


def next_step(processes: list[Process], norm: float) -> list[dict[str, Any]]:
    """What the ranks say when a step of a later epoch is done."""
    answers = [json.loads(process.answer())["result"] for process in processes]
    if {answer["norm"] for answer in answers} != {norm} or len({answer["epoch"] for answer in answers}) != 1:
        raise RuntimeError(f"the ranks do not agree on norm {norm} and an epoch: {answers}")
    return answers


def ask_all(processes: list[Process]) -> None:
    for process in processes:
        process.ask(f"step {time.monotonic_ns()}")


def started_ranks(
    contender: str, environments: list[dict[str, str]], how: dict[str, bool], stack: contextlib.ExitStack
) -> list[Process]:
    """They have taken a step."""
    command = [sys.executable, str(HERE / "rank.py"), contender]
    ranks = []
    for rank, environment in enumerate(environments):
        arguments = [str(rank), str(len(environments)), json.dumps(how)]
        ranks.append(Process(f"rank {rank}", [*command, *arguments], environment))
        stack.callback(ranks[-1].close)
    for process in ranks:
        process.answer(START_DEADLINE_S)
    return ranks


def run(name: str, contender: str, wanted_s: float, rounds: int, binaries: Path) -> dict[str, Any]:
    """`contender`: steps of one element on data path `stats`, or steps whose gradients travel."""
    samples: dict[str, list[float]] = {which: [] for which in KILLED}
    norm = NORMS[contender]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        nodes = stack.enter_context(Nodes(binaries / "gradsyncd", folder, NODES))
        ranks = started_ranks(contender, nodes.environments(LOCAL_WORLD_SIZE), {"until_again": True}, stack)
        ask_all(ranks)
        next_step(ranks, norm)
        for number in range(rounds):
            for which, node in KILLED.items():
                ask_all(ranks)
                time.sleep(STEPPING_S)
                begin = time.monotonic_ns()
                nodes.kill_and_start_again(node)
                done = max(answer["done_ns"] for answer in next_step(ranks, norm))
                samples[which].append(round((done - begin) / 1e9, 4))
            figures = ", ".join(f"{which} {times[-1]:.3f}" for which, times in samples.items())
            print(f"{name}: round {number + 1}/{rounds}: {figures} s", flush=True)
    config = {"world_size": WORLD_SIZE, "daemons": NODES, "contender": contender, "rounds": rounds}
    bars = [results.Bar(f"slowest, {which}", max(times), wanted_s, unit="s") for which, times in samples.items()]
    return results.write(name, "s", samples["member"], {"coordinator": samples["coordinator"]}, None, config, bars)


def run_aborted(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    """One rank of each node. The last rank's step bears another number, so that all hear of an error at once."""
    samples: list[float] = []
    norm = travelling_step.norm(ABORTED_NODES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        nodes = stack.enter_context(Nodes(binaries / "gradsyncd", folder, ABORTED_NODES))
        ranks = started_ranks("travelling_step", nodes.environments(1), {"aborts": True}, stack)
        epoch = 0
        for number in range(-1, rounds):
            ask_all(ranks)
            answers = next_step(ranks, norm)
            if answers[0]["epoch"] <= epoch:
                raise RuntimeError(f"the attempt was not aborted: epoch {epoch} goes on")
            epoch = answers[0]["epoch"]
            began = min(answer["lost_ns"] for answer in answers)
            seconds = round((max(answer["done_ns"] for answer in answers) - began) / 1e9, 4)
            if number >= 0:
                samples.append(seconds)
                print(f"{name}: round {number + 1}/{rounds}: {seconds:.3f} s", flush=True)
    config = {"world_size": ABORTED_NODES, "daemons": ABORTED_NODES, "rounds": rounds}
    bars = [results.Bar("slowest", max(samples), WANTED_REBUILT_S, unit="s")]
    return results.write(name, "s", samples, {}, None, config, bars)
