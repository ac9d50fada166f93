"""A training step under `gradsync observe`, and under `init(mode="observe")`, beside the same training alone.

Contenders are compared round by round, because their pairs share what the machine did then. CPU time is that of the
slower rank's process; what the daemon computes on another core is in the time on the clock alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import results
from gradsync._injected._command import injected
from processes import Ranks, alternate, free_port, private_daemon
from training_steps import train

BACKENDS = {"ours": "ddp", "init": "observe", "torch_ddp": "ddp", "floor": "measuring"}
ROUNDS_FACTOR = 3
BLOCK = 5


def check_observed(contender: str, ranks: Ranks) -> None:
    """Mode observe never raises: that it did observe has to be looked at."""
    for result in ranks.results:
        observed = result.get("observed")
        if result.get("skipped") or observed is None or not math.isclose(observed, result["norm"], rel_tol=1e-3):
            raise RuntimeError(f"{contender}: not every step was observed: {result}")


def run(name: str, wanted: dict[str, float], rounds: int, binaries: Path) -> dict[str, Any]:
    """`wanted["wanted_ratio"]` is of the plain training's time to that under the command."""
    rounds *= ROUNDS_FACTOR
    threads = max(1, len(os.sched_getaffinity(0)) // train.PER_NODE)
    cpu: dict[str, list[float]] = {contender: [] for contender in BACKENDS}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        address = stack.enter_context(private_daemon(binaries / "gradsyncd", folder))
        contenders: dict[str, Ranks] = {}
        for contender, way in BACKENDS.items():
            print(f"{name}: starting {contender}", flush=True)
            environment = {
                "TORCHELASTIC_RUN_ID": f"bench-{contender}",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "OMP_NUM_THREADS": str(threads),
                "GLOO_SOCKET_IFNAME": "lo",
                "GRADSYNC_ADDRESS": address,
            }
            if contender == "ours":
                asked = {"jsonl": str(folder / "steps.jsonl"), "patience_s": 60.0}
                environment = injected(environment, "observe", folder, asked, address)
            arguments = {"backend": way, "accumulate": 2, "block": BLOCK}
            contenders[contender] = Ranks("train", train.PER_NODE, arguments, environment)
            stack.callback(contenders[contender].close)

        def look(number: int) -> None:
            for contender, ranks in contenders.items():
                if contender in ("ours", "init"):
                    check_observed(contender, ranks)
                if number >= 0:
                    cpu[contender].append(round(max(float(result["cpu_s"]) for result in ranks.results) * 1e3, 4))

        samples = alternate(name, contenders, rounds, train.WARM_UP_ROUNDS, look, steps=BLOCK)
    config = {
        "world_size": train.PER_NODE,
        "model": "clients/python/examples/train_char.py, its options the default ones",
        "steps_in_a_block": BLOCK,
        "torch": torch.__version__,
        "torch_threads_per_rank": threads,
        "rounds": rounds,
        **wanted,
        "cpu_samples": cpu,
        "shown": {
            f"torch_ddp / {contender}, {what}": _shown(of["torch_ddp"], of[contender])
            for what, of in (("by the clock", samples), ("CPU time", cpu))
            for contender in ("ours", "init", "floor")
        },
    }
    ratio = statistics.median(_pairs(samples["torch_ddp"], samples["ours"]))
    bars = [results.Bar("torch_ddp / ours, of pairs", round(ratio, 3), wanted["wanted_ratio"], at_least=True)]
    peers = {peer: samples[peer] for peer in ("torch_ddp", "init")}
    return results.write(name, "ms", samples["ours"], peers, samples["floor"], config, bars)


def _pairs(theirs: list[float], ours: list[float]) -> list[float]:
    return [one / other for one, other in zip(theirs, ours, strict=True)]


def _shown(theirs: list[float], ours: list[float]) -> str:
    low, middle, high = statistics.quantiles(_pairs(theirs, ours), n=4)
    return f"{middle:.3f} (quartiles {low:.3f}, {high:.3f})"
