"""Times norm and clip of the CUDA kernels beside torch's `clip_grad_norm_`, in turns in one process on the same memory.

    bench_torch.py --library build/.../bin/libgpu_bench_library.so [--cases abcd] [--samples 7] [--json FILE]

Needs a GPU and torch; nothing of this project but the library. Ends with 69 where there is no device.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BFLOAT16 = 1
ALMOST_ONE = 1.0000002  # a loss scale that makes the scale pass run and leaves the values as they are
SLOW_SAMPLES = 3  # of torch's loop over 10,000 tensors


def mixed_counts(total_bytes: int) -> list[int]:
    """From 1 k to 100 M elements, each decade as likely as another, in no order."""
    chance = random.Random(1)
    counts: list[int] = []
    left = total_bytes // 2
    while left > 0:
        counts.append(min(int(10 ** (3 + 5 * chance.random())), left))
        left -= counts[-1]
    return counts


CASES: dict[str, tuple[str, Callable[[], list[int]]]] = {
    "a": ("one tensor of 1.5 G elements", lambda: [1_500_000_000]),
    "b": ("500 tensors of 450 k elements", lambda: [450_000] * 500),
    "c": ("10,000 tensors of 1 k elements", lambda: [1_000] * 10_000),
    "d": ("8 GB of mixed sizes", lambda: mixed_counts(8_000_000_000)),
}


class ClipStep:
    """`clip_step_*` of bench_library.cpp on torch's current stream."""

    def __init__(self, library: ctypes.CDLL, grads: list[torch.Tensor], max_norm: float) -> None:
        self._library = library
        numbers = ctypes.c_uint64 * len(grads)
        addresses = numbers(*(grad.data_ptr() for grad in grads))
        counts = numbers(*(grad.numel() for grad in grads))
        library.clip_step_new.restype = ctypes.c_void_p
        handle = library.clip_step_new(
            addresses, counts, ctypes.c_uint64(len(grads)), BFLOAT16, ctypes.c_double(max_norm), 0
        )
        if not handle:
            raise RuntimeError("clip_step_new failed")
        self._handle = ctypes.c_void_p(handle)
        self._stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def measure(self) -> None:
        self._check(self._library.clip_step_measure(self._handle, self._stream))

    def clip(self, loss_scale: float) -> None:
        self._check(self._library.clip_step_clip(self._handle, ctypes.c_double(loss_scale), self._stream))

    def norm(self) -> float:
        norm, coefficient = ctypes.c_double(), ctypes.c_double()
        self._check(self._library.clip_step_outcome(self._handle, ctypes.byref(norm), ctypes.byref(coefficient)))
        return norm.value

    def close(self) -> None:
        self._library.clip_step_delete(self._handle)

    @staticmethod
    def _check(error: int) -> None:
        if error != 0:
            raise RuntimeError("the library reported an error on stderr")


def elapsed_us(run: Callable[[], object], times: int) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3 / times


def make_gradients(counts: list[int]) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """One allocation, its views as gradients (each at 512 bytes), and parameters that share their memory."""
    places: list[int] = []
    total = 0
    for count in counts:
        places.append(total)
        total += (count + 255) // 256 * 256
    flat = torch.empty(total, dtype=torch.bfloat16, device="cuda")
    torch.manual_seed(1)
    for first in range(0, total, 1 << 28):
        flat[first : first + (1 << 28)].normal_(0, 1e-3)
    grads = [flat[place : place + count] for place, count in zip(places, counts, strict=True)]
    parameters = []
    for grad in grads:
        parameter = grad.detach().requires_grad_()
        parameter.grad = grad
        parameters.append(parameter)
    return flat, grads, parameters


def exact_norm(grads: list[torch.Tensor]) -> float:
    """In fp64, a slice at a time."""
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    for grad in grads:
        for part in grad.split(1 << 27):
            total += part.double().square().sum()
    return math.sqrt(total.item())


def run_case(name: str, library: ctypes.CDLL, samples: int) -> list[dict[str, Any]]:
    what, make_counts = CASES[name]
    counts = make_counts()
    moved = sum(counts) * 2
    flat, grads, parameters = make_gradients(counts)
    copy_to = torch.empty_like(flat)
    step = ClipStep(library, grads, 1e30)
    torch_clip = torch.nn.utils.clip_grad_norm_

    def unclipped() -> None:
        step.measure()
        step.clip(1.0)

    def clipped() -> None:
        step.measure()
        step.clip(ALMOST_ONE)

    runs: dict[str, Callable[[], object]] = {
        "copy": lambda: copy_to.copy_(flat),
        "unclipped": unclipped,
        "clipped": clipped,
        "torch_foreach": lambda: torch_clip(parameters, 1e30, foreach=True),
        "torch_loop": lambda: torch_clip(parameters, 1e30, foreach=False),
    }
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    unclipped()
    error = abs(step.norm() / exact_norm(grads) - 1)
    times = 10 if moved < 1_000_000_000 else 2
    took: dict[str, list[float]] = {run: [] for run in runs}
    for sample in range(samples):
        for key, run in runs.items():
            slow = key == "torch_loop" and len(counts) > 100
            if not slow:
                took[key].append(elapsed_us(run, times))
            elif sample < SLOW_SAMPLES:
                took[key].append(elapsed_us(run, 1))
    step.close()
    middle = {key: statistics.median(values) for key, values in took.items()}
    config = {"what": what, "tensors": len(counts), "bytes": moved, "relative_error_of_norm": error}
    results = []
    for key, copies in (("unclipped", 0.5), ("clipped", 1.5)):
        copies *= moved / (flat.numel() * 2)  # the copy moves the gaps between tensors as well
        ours, floor = middle[key], middle["copy"] * copies
        peers = {
            peer: {"value": middle[peer], "ratio": middle[peer] / ours} for peer in ("torch_foreach", "torch_loop")
        }
        results.append(
            {
                "name": f"gpu_torch_{name}_{key}",
                "unit": "us",
                "ours": ours,
                "ratio": peers["torch_foreach"]["ratio"],
                "floor": floor,
                "floor_ratio": ours / floor,
                "peers": peers,
                "samples": {
                    "ours": took[key],
                    **{peer: took[peer] for peer in peers},
                    "floor": [copied * copies for copied in took["copy"]],
                },
                "config": config,
                "machine": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__},
            }
        )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--cases", default="abcd")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_torch: torch sees no GPU; nothing was measured", file=sys.stderr)
        return 69
    library = ctypes.CDLL(str(options.library.resolve()))
    results: list[dict[str, Any]] = []
    began = time.monotonic()
    for name in options.cases:
        results += run_case(name, library, options.samples)
        torch.cuda.empty_cache()
        # After each case: what was measured survives a run that is ended early.
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        for result in results[-2:]:
            peers = "  ".join(f"{peer} {value['ratio']:6.2f}x" for peer, value in result["peers"].items())
            print(
                f"{result['name']:26} {result['ours']:10.1f} us  {result['floor_ratio']:6.3f} of the floor  {peers}"
                f"  error {result['config']['relative_error_of_norm']:.1e}",
                flush=True,
            )
    print(f"bench_torch: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
