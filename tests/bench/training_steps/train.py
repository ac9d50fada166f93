"""A training step of the demo's model with everything in it, against DistributedDataParallel and torch's clip.

With `nodes` ours has a daemon for every two ranks, which stand for a node.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

import results
from over_nodes.daemons import Nodes
from processes import Ranks, alternate, free_port, private_daemon

PER_NODE = 2
MICRO_BATCHES_IN_A_BLOCK = 10  # a turn is as many steps as have about that many
WARM_UP_ROUNDS = 3
ROUNDS_FACTOR = 2  # Blocks are short, so there are more of them than rounds of the other benchmarks.
# Both trainings see the same data from the same weights, so that their first steps agree but for rounding.
TOLERANCE = 1e-3


def check(contenders: dict[str, Ranks]) -> None:
    ours, theirs = (ranks.results[0] for ranks in list(contenders.values())[:2])
    if ours["step"] != theirs["step"] or not math.isclose(ours["norm"], theirs["norm"], rel_tol=TOLERANCE):
        raise RuntimeError(f"the two trainings differ: ours {ours}, torch_ddp {theirs}")


def daemons(binary: Path, folder: Path, nodes: int, per_node: int, stack: contextlib.ExitStack) -> list[dict[str, str]]:
    """The environment of each rank: which daemon it has."""
    if nodes == 1:
        return [{"GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binary, folder))}] * per_node
    return stack.enter_context(Nodes(binary, folder, nodes)).environments(per_node)


def run(
    name: str,
    backend: str,
    wanted: dict[str, float],
    rounds: int,
    binaries: Path,
    accumulate: int = 2,
    nodes: int = 1,
    tensor_parallel: bool = False,
) -> dict[str, Any]:
    """`backend` of clients/python/examples/train_char.py against its `ddp`, and the bound of whatever synchronises.

    With `tensor_parallel` twice as many ranks train the model split over pairs of them.
    """
    backends = {backend: backend, "torch_ddp": "ddp"}
    if backend == "gradsync":
        backends["floor"] = "meeting"
    rounds *= ROUNDS_FACTOR
    block = max(1, MICRO_BATCHES_IN_A_BLOCK // accumulate)
    per_node = 2 * PER_NODE if tensor_parallel else PER_NODE
    world_size = nodes * per_node
    threads = max(1, len(os.sched_getaffinity(0)) // world_size)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        environment = {
            "TORCHELASTIC_RUN_ID": "bench",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": str(threads),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        by_rank = daemons(binaries / "gradsyncd", folder, nodes, per_node, stack)
        contenders: dict[str, Ranks] = {}
        for contender, way in backends.items():
            print(f"{name}: starting {contender}", flush=True)
            environment["MASTER_PORT"] = str(free_port())
            arguments = {"backend": way, "accumulate": accumulate, "block": block}
            contenders[contender] = Ranks(
                "train_tp" if tensor_parallel else "train", world_size, arguments, environment, by_rank
            )
            stack.callback(contenders[contender].close)

        def look(number: int) -> None:
            if number == -WARM_UP_ROUNDS:
                check(contenders)

        samples = alternate(name, contenders, rounds, WARM_UP_ROUNDS, look, steps=block)
    config = {
        "world_size": world_size,
        "daemons": nodes,
        "model": "clients/python/examples/train_char.py, its options the default ones but for the micro-batches",
        "micro_batches_per_step": accumulate,
        "tensor_parallel": 2 if tensor_parallel else 1,
        "steps_in_a_block": block,
        "torch": torch.__version__,
        "torch_threads_per_rank": threads,
        "rounds": rounds,
        **wanted,
    }
    peers = {"torch_ddp": samples["torch_ddp"]}
    return results.write(name, "ms", samples[backend], peers, samples.get("floor"), config)
