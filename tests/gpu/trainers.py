"""Trainers that share one GPU in mode sync: their gradients and norms must have the bits of those on CPUs.

    trainers.py --gpu UUID --kernels libgradsync_kernels.so [--worlds 2,4] [--steps 5] [--held N] [--json FILE]

Starts the daemon that GRADSYNCD names, and for each world its ranks, first with gradients in memory of CPUs and then
with gradients on the GPU, which the daemon's worker maps: some steps by the raw API, as many of a module, and as many
in memory of torch's allocator. Then kills a rank in a step: the other one has to be told within a second, and the GPU
has to get the memory back. Needs torch and the client. `--driver libcuda_fake.so` takes an emulated GPU, which is how
this program is tested. Ends with 1 where bits differ, a rank is refused, or the end of a rank costs more than that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from daemon import Daemon
from gpu_ranks import MEMORY, GpuRank, all_do, workers_of

LARGE = 1_000_003  # elements: several buckets, and no multiple of a vector
HELD = 1 << 30  # elements of float32: far more than a process takes on a GPU besides
TOLD_S = 1.0  # from the end of a rank to the error of the other
BACK_S = 10.0  # until its memory is back
COMMUNICATOR = "gradsync-fake-nccl"  # as MEMORY, of the fake library's


class Refused(Exception):
    """A rank answered with an error."""


def told(ranks: list[GpuRank], do: str, **arguments: object) -> list[dict[str, Any]]:
    answers = all_do(ranks, do, **arguments)
    errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
    if errors:
        raise Refused("; ".join(errors))
    return answers


def taken(address: str, world: int, device: str, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """What the ranks of a world found in the steps of each part, or why they did not; and the seconds to start."""
    job = f"{device}-{world}"
    seeds = range(options.steps)
    parts: dict[str, Any] = {}
    part, started = "raw API", 0.0
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(GpuRank(address, job, rank, world, options.gpu, GRADSYNC_LIBCUDA=options.driver))
            for rank in range(world)
        ]
        try:
            told(ranks, "declare", device=device, large=options.large)
            started = time.monotonic() - began
            parts[part] = [told(ranks, "step", seed=seed) for seed in seeds]
            part = "module"
            module = told(ranks, "train", device=device, steps=options.steps)
            parts[part] = [[rank["steps"][step] for rank in module] for step in seeds]
            part = "memory of torch"
            told(ranks, "declare", device=device, memory="torch" if device == "cuda" else None)
            parts[part] = [told(ranks, "step", seed=seed) for seed in seeds]
        except (Refused, AssertionError, OSError) as error:
            parts[part] = f"{type(error).__name__}: {error}"
    return parts, started


def compared(address: str, world: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of the results: of each part its norms where all bits are equal, else everything."""
    of_cpus, on_cpus = taken(address, world, "cpu", options)
    of_gpu, on_gpu = taken(address, world, "cuda", options)
    same: dict[str, Any] = {}
    failed: dict[str, Any] = {}
    for part, steps in of_cpus.items():
        found = of_gpu.get(part, "not reached")
        if isinstance(steps, list) and found == steps and all(rank == ranks[0] for ranks in found for rank in ranks):
            same[part] = [ranks[0]["norm"] for ranks in found]
        else:
            failed[part] = {"cpu": steps, "gpu": found}
    result = {"world": world, "started_s": {"cpu": on_cpus, "gpu": on_gpu}, "same_bits": same}
    return result | ({"failed": failed} if failed else {})


def used_bytes(workers: Iterable[int], options: argparse.Namespace) -> int:
    """Memory of the GPU that is in use; of an emulated one, what these workers have mapped, as far as they live."""
    if not options.driver:
        asked = ["nvidia-smi", f"--id={options.gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout) << 20
    total = 0
    for worker in workers:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{worker}/maps").read_text().splitlines():
                if MEMORY in line or COMMUNICATOR in line:
                    first, last = (int(end, 16) for end in line.split()[0].split("-"))
                    total += last - first
    return total


def owner_killed(daemon: Daemon, options: argparse.Namespace) -> dict[str, Any]:
    """What the end of a rank costs another one that waits for it in a step."""
    found: dict[str, Any] = {"arena_bytes": 4 * options.held}
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(GpuRank(daemon.socket, "killed", rank, 2, options.gpu, GRADSYNC_LIBCUDA=options.driver))
            for rank in range(2)
        ]
        try:
            told(ranks, "declare", device="cuda", large=options.held)
            told(ranks, "step", seed=0, fills=False)
            workers = workers_of(daemon.process.pid)
            before = used_bytes(workers, options)
            ranks[0].tell("step", seed=1, fills=False)
            time.sleep(0.5)  # it waits in its step
            began = time.monotonic()
            ranks[1].kill()
            answer = ranks[0].answer()
            found |= {"error": answer.get("kind"), "error_s": time.monotonic() - began}
            while (back := before - used_bytes(workers, options)) < found["arena_bytes"] and (
                time.monotonic() - began < BACK_S
            ):
                time.sleep(0.02)
            found |= {"back_bytes": back, "back_s": time.monotonic() - began}
        except (Refused, AssertionError, OSError, subprocess.SubprocessError) as error:
            return found | {"failed": f"{type(error).__name__}: {error}"}
    if found["error"] != "RankLost" or found["error_s"] > options.told or found["back_bytes"] < found["arena_bytes"]:
        found["failed"] = f"RankLost within {options.told} s and the memory within {BACK_S} s were wanted"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--large", type=int, default=LARGE)
    parser.add_argument("--held", type=int, default=HELD)
    parser.add_argument("--told", type=float, default=TOLD_S, help="seconds until a lost rank is named (default 1)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    with Daemon("--gpu-kernels", options.kernels, "--gpu-devices", options.gpu) as daemon:
        worlds = [int(world) for world in options.worlds.split(",")]
        for number in range(len(worlds) + 1):
            if number < len(worlds):
                results.append(compared(daemon.socket, worlds[number], options))
            else:
                results.append({"owner_killed": owner_killed(daemon, options)})
            print(json.dumps(results[-1]), flush=True)
            # After each: what was found survives a run that is ended early.
            if options.json is not None:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    failed = [result for result in results if "failed" in result or "failed" in result.get("owner_killed", {})]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
