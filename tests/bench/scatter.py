"""Four ranks with 100 M elements each; every rank keeps a part of their mean: over 1 × 4 ranks, or HSDP over 2 × 2."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

import results
from gradients import MAX_NORM, compare, dtype_of, expected, result, squares, tensor_sizes
from processes import Floor, Ranks, alternate, private_daemon

ELEMENTS = 100_000_000
DTYPE = "float32"
WORLD_SIZE = 4
WARM_UP_ROUNDS = 2
WANTED_FLOOR_RATIO = 1.4
# Gloo's own collective, as FSDP calls it, and a faster way: an exchange, then a local sum.
PEERS = {"torch_gloo": "reduce_scatter", "gloo_all_to_all": "all_to_all"}
TOLERANCE = 1e-5  # all sums are those of float32, in orders of their own


def run(name: str, replicas: int, rounds: int, binaries: Path) -> dict[str, Any]:
    shards = WORLD_SIZE // replicas
    max_norm = MAX_NORM if replicas > 1 else None
    axes = {"dp_replicate": replicas, "dp_shard": shards} if replicas > 1 else {"dp": shards}
    cpus = len(os.sched_getaffinity(0))
    threads = max(1, cpus // WORLD_SIZE)
    common = {"elements": ELEMENTS, "dtype_name": DTYPE, "max_norm": max_norm}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        environment = {
            "BENCH_FOLDER": str(folder),
            "OMP_NUM_THREADS": str(threads),
            "GLOO_SOCKET_IFNAME": "lo",
            "GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binaries / "gradsyncd", folder)),
        }
        measured: dict[str, Ranks | Floor] = {}

        def start(contender: str, module: str, arguments: dict[str, Any]) -> None:
            print(f"{name}: starting {contender}", flush=True)
            measured[contender] = Ranks(module, WORLD_SIZE, common | arguments, environment)
            stack.callback(measured[contender].close)

        start("ours", "gradsync_raw", {"axes": axes, "scattered": list(axes)[-1]})
        for peer, way in PEERS.items():
            start(peer, "gloo_scatter", {"way": way, "shards": shards})
        measured["floor"] = Floor(binaries / "bench_floor", ["scatter", f"{replicas}x{shards}", ELEMENTS, min(2, cpus)])
        stack.callback(measured["floor"].close)

        right = []
        for shard in range(shards):
            norm, tensors = expected(WORLD_SIZE, dtype_of(DTYPE), ELEMENTS, (shard, shards), max_norm)
            right.append(result(norm, tensors) | {"squares": squares(tensors)})

        def check(_: int) -> None:
            for contender, ranks in measured.items():
                if isinstance(ranks, Ranks):
                    for rank, found in enumerate(ranks.results):
                        compare(f"{contender} rank {rank}", found, right[rank % shards], TOLERANCE)

        samples = alternate(name, measured, rounds, WARM_UP_ROUNDS, check)
    config = {
        "world_size": WORLD_SIZE,
        "mesh": axes,
        "elements_per_rank": ELEMENTS,
        "tensors": len(tensor_sizes(ELEMENTS)),
        "dtype": DTYPE,
        "norm": True,
        "max_norm": max_norm,
        "torch": torch.__version__,
        "torch_threads_per_rank": threads,
        "peer_bucket_mib": 25,
        "peer_ways": PEERS,
        "rounds": rounds,
        "wanted_floor_ratio": WANTED_FLOOR_RATIO,
    }
    peers = {peer: samples[peer] for peer in PEERS}
    return results.write(name, "ms", samples["ours"], peers, samples["floor"], config)
