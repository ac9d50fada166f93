"""One step of two ranks, clip active: reduce, divide, norm, scale. 100 M elements, or 1 M in 1,000 small tensors."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import results
from gradients import MAX_NORM, compare, dtype_of, expected, result, tensor_sizes
from processes import Floor, Ranks, Unavailable, private_daemon
from step_empty import echo_server, recorded_frames

WORLD_SIZE = 2
WARM_UP_ROUNDS = 2
PEERS = ("torch_gloo", "deepspeed_shm")
READY_EACH = "ours, a ready call per tensor"
BARE_SERVER = "bare_server"
# How far a right result may be from the fp64 one: torch keeps the norm in the gradients' own type.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


@contextlib.contextmanager
def bare_server(binaries: Path, elements: int, folder: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What ranks of contender `bare_server` need: the server, the ranks' memory, and the frames of a step."""
    with tempfile.TemporaryDirectory(prefix="gradsync-bench-", dir="/dev/shm") as memory:
        files = [str(Path(memory) / f"rank{rank}") for rank in range(WORLD_SIZE)]
        for rank, file in enumerate(files):
            with open(file, "wb") as empty:
                empty.truncate((elements + 1) * 4)
            environment[f"BENCH_RANK_{rank}"] = file
        frames = recorded_frames(environment["GRADSYNC_ADDRESS"])
        step = [str(elements), *files]
        with echo_server(binaries / "bench_echo", folder, frames["result"], step) as environment["BENCH_ECHO"]:
            yield {"frames": frames}


def run(
    name: str,
    dtype: str,
    wanted: dict[str, Any],
    rounds: int,
    binaries: Path,
    elements: int = 100_000_000,
    rounds_factor: int = 1,
    ready: str = "each",
) -> dict[str, Any]:
    """`wanted` as `results.write` reads it from `config`; a short step is taken in more rounds.

    With `ready` "all" ours says so once for all tensors, as the peers do; with a call per tensor it is measured beside,
    and so is a server that only answers and runs the loops of the floor.
    """
    rounds *= rounds_factor
    cpus = len(os.sched_getaffinity(0))
    threads = max(1, cpus // WORLD_SIZE)
    unavailable: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        environment = {
            "BENCH_FOLDER": str(folder),
            "BENCH_ID": str(os.getpid()),
            "OMP_NUM_THREADS": str(threads),
            "GLOO_SOCKET_IFNAME": "lo",
            "GRADSYNC_ADDRESS": stack.enter_context(private_daemon(binaries / "gradsyncd", folder)),
        }
        contenders: dict[str, Ranks] = {}
        wanted_contenders = {"gradsync_raw": ("gradsync_raw", {"ready": ready})}
        if ready != "each":
            wanted_contenders[READY_EACH] = ("gradsync_raw", {"ready": "each"})
            try:
                frames = stack.enter_context(bare_server(binaries, elements, folder, environment))
                wanted_contenders[BARE_SERVER] = ("bare_server", frames)
            except Unavailable as error:
                unavailable[BARE_SERVER] = str(error)
                print(f"{name}: without {BARE_SERVER}: {error}", flush=True)
        wanted_contenders |= {peer: (peer, {}) for peer in PEERS}
        for contender, (module, own) in wanted_contenders.items():
            print(f"{name}: starting {contender}", flush=True)
            try:
                contenders[contender] = Ranks(
                    module, WORLD_SIZE, {"elements": elements, "dtype_name": dtype, **own}, environment
                )
            except Unavailable as error:
                if contender != "deepspeed_shm":  # The one peer that has to be compiled on this machine.
                    raise
                unavailable[contender] = str(error)
                print(f"{name}: without {contender}: {error}", flush=True)
                continue
            stack.callback(contenders[contender].close)
        floor = Floor(binaries / "bench_floor", ["step", dtype, elements, min(2, cpus)])
        stack.callback(floor.close)

        right = result(*expected(WORLD_SIZE, dtype_of(dtype), elements))
        everything: dict[str, Ranks | Floor] = {**contenders, "floor": floor}
        samples: dict[str, list[float]] = {contender: [] for contender in everything}
        shown = 1 if elements > 10_000_000 else 3  # decimals of a millisecond
        for round_index in range(-WARM_UP_ROUNDS, rounds):
            line = []
            for contender, measured in everything.items():
                milliseconds = measured.step() * 1e3
                if round_index >= 0:
                    samples[contender].append(round(milliseconds, 4))
                if isinstance(measured, Ranks):
                    for rank, found in enumerate(measured.results):
                        compare(f"{contender} rank {rank}", found, right, TOLERANCE[dtype])
                line.append(f"{contender} {milliseconds:.{shown}f}")
            label = "warm-up" if round_index < 0 else f"round {round_index + 1}/{rounds}"
            print(f"{name}: {label}: {', '.join(line)} ms", flush=True)
    config = {
        "world_size": WORLD_SIZE,
        "elements": elements,
        "tensors": len(tensor_sizes(elements)),
        "dtype": dtype,
        "max_norm": MAX_NORM,
        "clip_active": True,
        "torch": torch.__version__,
        "torch_threads_per_rank": threads,
        "peer_bucket_mib": 25,
        "rounds": rounds,
        "unavailable_peers": unavailable,
        "ready": ready,
        **wanted,
    }
    if READY_EACH in samples:
        each, torch_gloo = (statistics.median(samples[contender]) for contender in (READY_EACH, "torch_gloo"))
        config["ready_each_samples"] = samples[READY_EACH]
        config["shown"] = {READY_EACH: f"{each:.4g} ms, torch_gloo {torch_gloo / each:.2f} x"}
        if BARE_SERVER in samples:
            bare = statistics.median(samples[BARE_SERVER])
            config["bare_server_samples"] = samples[BARE_SERVER]
            config["shown"][BARE_SERVER] = f"{bare:.4g} ms, torch_gloo {torch_gloo / bare:.2f} x"
    peers = {peer: samples[peer] for peer in PEERS if peer in contenders}
    return results.write(name, "ms", samples["gradsync_raw"], peers, samples["floor"], config)
