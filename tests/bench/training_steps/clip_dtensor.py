"""Norm and clip of many DTensor gradients on FSDP2 over 2 × 2 ranks: `gradsync.torch.clip_grad_norm_` or torch's.

With `nodes` each replica's ranks have a daemon of their own.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from pathlib import Path
from typing import Any

import torch

import results
from over_nodes.daemons import Nodes
from processes import Ranks, alternate, free_port, private_daemon

WORLD_SIZE = 4
TENSORS = 2000
WARM_UP_ROUNDS = 3
BACKENDS = {"gradsync": "gradsync", "torch_clip": "torch"}
TOLERANCE = 1e-5  # torch's norm and product are those of float32


def check(contenders: dict[str, Ranks]) -> None:
    """Every round: the norms agree, and so do the gradients after the clip, rank by rank."""
    ours, theirs = (ranks.results for ranks in contenders.values())
    for rank, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if any(not math.isclose(a[key], b[key], rel_tol=TOLERANCE) for key in a):
            raise RuntimeError(f"rank {rank} differs: ours {a}, torch {b}")


def daemons(binary: Path, folder: Path, nodes: int, stack: contextlib.ExitStack) -> list[dict[str, str]]:
    """The environment of each rank: which daemon it has."""
    if nodes == 1:
        return [{"GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binary, folder))}] * WORLD_SIZE
    return stack.enter_context(Nodes(binary, folder, nodes)).environments(WORLD_SIZE // nodes)


def run(name: str, elements: int, wanted_ratio: float, rounds: int, binaries: Path, nodes: int = 1) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        by_rank = daemons(binaries / "gradsyncd", folder, nodes, stack)
        environment = {
            "TORCHELASTIC_RUN_ID": "bench",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        contenders: dict[str, Ranks] = {}
        for contender, backend in BACKENDS.items():
            print(f"{name}: starting {contender}", flush=True)
            arguments = {"backend": backend, "tensors": TENSORS, "elements": elements}
            environment["MASTER_PORT"] = str(free_port())
            contenders[contender] = Ranks("dtensor_clip", WORLD_SIZE, arguments, environment, by_rank)
            stack.callback(contenders[contender].close)
        samples = alternate(name, contenders, rounds, WARM_UP_ROUNDS, lambda _: check(contenders))
    config = {
        "world_size": WORLD_SIZE,
        "mesh": {"dp_replicate": 2, "dp_shard": 2},
        "daemons": nodes,
        "tensors": TENSORS,
        "elements_per_tensor": elements,
        "gradients": "made by fully_shard before each step, outside the timed part",
        "torch": torch.__version__,
        "torch_threads_per_rank": 1,
        "rounds": rounds,
        "wanted_ratio": wanted_ratio,
    }
    return results.write(name, "ms", samples["gradsync"], {"torch_clip": samples["torch_clip"]}, None, config)
