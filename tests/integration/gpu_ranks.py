"""Ranks whose gradients lie on an emulated GPU, as processes that a test tells what to do.

This file is also the program of a rank, `python gpu_ranks.py ADDRESS JOB RANK WORLD`: it reads a line of JSON for each
order and answers with one. The driver it loads is `libcuda_fake.so`, whose memory the daemon's workers really map.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from daemon import BINARY, DEADLINE_S, clean_environment

import gradsync

LIBRARIES = Path(BINARY).parents[1] / "lib"
KERNELS, DRIVER = LIBRARIES / "libgradsync_kernels_emulated.so", LIBRARIES / "libcuda_fake.so"
GPUS = [f"GPU-5a4d2c1e-0000-4000-8000-{number:012}" for number in (1, 2)]
MEMORY = "emulated-gpu-memory"  # in the maps of a process, a line for each mapping of it
SHAPES = {"weight": ((300, 70), "float32"), "bias": ((333,), "bfloat16"), "scale": ((5,), "float64")}


def options(*more: str) -> tuple[str, ...]:
    """What a daemon that may use the emulated GPUs is started with."""
    return ("--gpu-kernels", str(KERNELS), "--gpu-devices", ",".join(GPUS), *more)


def workers_of(daemon: int) -> list[int]:
    """The pids of the workers that a daemon has."""
    found = []
    for task in Path(f"/proc/{daemon}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def mappings_in(process: int) -> int:
    """How many allocations of emulated GPUs it has mapped."""
    return Path(f"/proc/{process}/maps").read_text().count(MEMORY)


def until(holds: Any, what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(0.005)


class GpuRank:
    """One rank; `order` waits for the answer, `tell` and `answer` do it in two halves."""

    def __init__(self, address: str, job: str, rank: int, world: int = 2, gpu: str = GPUS[0], **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, address, job, str(rank), str(world)],
            env=clean_environment(GRADSYNC_LIBCUDA=str(DRIVER), CUDA_VISIBLE_DEVICES=gpu, **env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> GpuRank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(DEADLINE_S)

    def tell(self, do: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the rank ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def order(self, do: str, **arguments: object) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer()


def all_do(ranks: list[GpuRank], do: str, **arguments: object) -> list[dict[str, Any]]:
    for rank in ranks:
        rank.tell(do, **arguments)
    return [rank.answer() for rank in ranks]


class _Program:
    def __init__(self, address: str, job: str, rank: int, world: int) -> None:
        self._rank = rank
        self._client = gradsync.connect(address)
        self._job = self._client.attach(job, rank=rank, world_size=world)
        self._grads: gradsync.Grads | None = None
        sync = {"dp": gradsync.Partial("mean") >> gradsync.Replicate()}
        self._tensors = [
            gradsync.Tensor(name, shape, dtype=dtype, placements=sync) for name, (shape, dtype) in SHAPES.items()
        ]

    def declare(self, device: str) -> dict[str, Any]:
        clip = gradsync.Clip(max_norm=1.0)
        self._grads = self._job.declare(self._tensors, clip=clip, device=device, timeout=DEADLINE_S)
        return {"digest": self._grads.plan_digest}

    def step(self, seed: int) -> dict[str, Any]:
        assert self._grads is not None
        for number, name in enumerate(SHAPES):
            generator = torch.Generator().manual_seed(1000 * seed + 10 * number + self._rank)
            held = self._grads.input(name).torch()
            held.copy_(torch.randn(held.shape, generator=generator, dtype=torch.float64))
            self._grads.ready(name)
        report = self._grads.finish(timeout=DEADLINE_S)
        parts = [self._grads.output(name).torch().contiguous().view(torch.uint8).numpy().tobytes() for name in SHAPES]
        return {"norm": report.norm, "bits": hashlib.sha256(b"".join(parts)).hexdigest(), "clipped": report.clipped}

    def detach(self) -> dict[str, Any]:
        self._job.detach()
        self._grads = None
        return {}


def _main() -> None:
    program = _Program(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    for line in sys.stdin:
        order = json.loads(line)
        do = getattr(program, order.pop("do"))
        try:
            answer = do(**order)
        except gradsync.GradsyncError as error:
            answer = {"kind": type(error).__name__, "error": str(error), "ranks": getattr(error, "ranks", None)}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the client's end is not what is tested


if __name__ == "__main__":
    _main()
