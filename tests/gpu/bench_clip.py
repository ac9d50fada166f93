"""Times the clip of gradients that FSDP2 and DDP reduced beside torch's `clip_grad_norm_`, and checks its results.

    bench_clip.py --kernels libgradsync_kernels.so [--samples 15] [--json FILE]

FSDP2 over one rank, and DDP over Gloo with two ranks, all on one GPU, in bfloat16 and float32. Starts the daemon that
GRADSYNCD names and the ranks, which clip the same gradients in turns: by torch, and by `gradsync.torch` with the
kernels of the library. Needs torch and the client. `--emulate` has gradients on CPUs and the emulated library, which is
how this program is tested; its times mean nothing. Ends with 1 where a norm or a product is more than one unit in the
last place off, or where something else than the kernels measured; with 69 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from daemon import Daemon, clean_environment

WORLDS = {"fsdp2": 1, "ddp": 2}
DTYPES = {"bfloat16": (torch.bfloat16, torch.int16), "float32": (torch.float32, torch.int32)}
CASES = [(framework, dtype) for framework in WORLDS for dtype in DTYPES]
MEASURE_ONLY = 1e30  # a max_norm above every norm
RANKS_S, EMULATED_RANKS_S = 30.0, 120.0
CHECKED_STEPS = 4  # the first steps take fingerprints as well


def ulps(ours: torch.Tensor, theirs: torch.Tensor, whole: torch.dtype) -> int:
    """The largest distance of two tensors in units in the last place."""

    def ordered(values: torch.Tensor) -> torch.Tensor:
        bits = values.view(whole).to(torch.int64)
        return torch.where(bits >= 0, bits, -(bits & torch.iinfo(whole).max))

    return int((ordered(ours) - ordered(theirs)).abs().max().item())


def held(gradient: torch.Tensor) -> torch.Tensor:
    """What this rank has of it."""
    to_local = getattr(gradient, "to_local", None)
    return gradient if to_local is None else to_local()


class Rank:
    """A model of this rank, with gradients that its framework has reduced."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device = "cpu" if options.emulate else "cuda"
        self.dtype, self.bits = DTYPES[options.dtype]
        backend = "nccl" if options.framework == "fsdp2" and not options.emulate else "gloo"
        dist.init_process_group(backend)
        torch.manual_seed(1)
        width = options.width
        layers = [nn.Linear(width, width, bias=False) for _ in range(options.layers)]
        model: nn.Module = nn.Sequential(*layers).to(self.device, self.dtype)
        self.mesh: Any = {"dp": dist.get_world_size()}
        if options.framework == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            self.mesh = init_device_mesh(self.device, (1,), mesh_dim_names=("dp",))
            for layer in layers:
                fully_shard(layer, mesh=self.mesh)
            model = fully_shard(model, mesh=self.mesh)
        else:
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.model = model
        model(torch.randn(4, width, device=self.device, dtype=self.dtype)).float().square().mean().backward()
        self.gradients = [held(p.grad) for p in model.parameters() if p.grad is not None]
        self.before = [gradient.clone() for gradient in self.gradients]

    def restore(self) -> None:
        for gradient, before in zip(self.gradients, self.before, strict=True):
            gradient.copy_(before)

    def exact_norm(self) -> float:
        """This rank holds every element: there is one of FSDP2, and DDP replicates."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for before in self.before:
            total += before.double().square().sum()
        return math.sqrt(total.item())

    def product_ulps(self, coefficient: float) -> int:
        """Between the gradients as they are and their products with a coefficient, rounded once."""
        worst = 0
        for gradient, before in zip(self.gradients, self.before, strict=True):
            exact = (before.float() * torch.tensor(coefficient, device=self.device)).to(self.dtype)
            worst = max(worst, ulps(gradient, exact, self.bits))
        return worst

    def took_us(self, clip: Callable[[], object]) -> float:
        """From gradients that are ready to gradients that are clipped, on this rank, beside the others."""
        self.restore()
        self.wait()
        dist.barrier()
        began = time.perf_counter()
        clip()
        self.wait()
        return (time.perf_counter() - began) * 1e6

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """What this rank found."""
    import gradsync.torch as gst

    one = Rank(options)
    parameters = list(one.model.parameters())
    exact = one.exact_norm()
    max_norm = exact / 3
    world = dist.get_world_size()
    gst.init(
        one.model,
        mesh=one.mesh,
        job=f"clip-{options.framework}-{options.dtype}",
        rank=dist.get_rank(),
        world_size=world,
        address=options.address,
        mode="clip",
        check_weights=False,
    )
    clips: dict[str, Callable[[], object]] = {
        "unclipped": lambda: gst.clip_grad_norm_(parameters, MEASURE_ONLY),
        "torch_unclipped": lambda: nn.utils.clip_grad_norm_(parameters, MEASURE_ONLY, foreach=True),
        "clipped": lambda: gst.clip_grad_norm_(parameters, max_norm),
        "torch_clipped": lambda: nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True),
    }
    for _ in range(CHECKED_STEPS):
        for clip in clips.values():
            one.took_us(clip)
    took: dict[str, list[float]] = {name: [] for name in clips}
    for _ in range(options.samples):
        for name, clip in clips.items():
            took[name].append(one.took_us(clip))
    one.took_us(clips["clipped"])
    report = gst.last_report()
    assert report is not None
    norm = torch.tensor([report.norm, exact], dtype=torch.float64).float()
    found = {
        "norm": report.norm,
        "exact_norm": exact,
        "norm_ulps": ulps(norm[:1], norm[1:], torch.int32),
        "product_ulps": one.product_ulps(report.coefficient),
        "coefficient": report.coefficient,
        "measured_by": report.measured_by,
        "took": took,
        "bytes": sum(gradient.nbytes for gradient in one.gradients),
        "tensors": len(one.gradients),
        "gpu": torch.cuda.get_device_name() if one.device == "cuda" else "emulated on the host",
    }
    gst.close()
    dist.destroy_process_group()
    return found


def results_of(framework: str, dtype: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for gradients that stay as they are, and one for those that are multiplied."""
    config = {key: value for key, value in found.items() if key not in ("took", "gpu")}
    config |= {"framework": framework, "dtype": dtype, "ranks": WORLDS[framework]}
    machine = {"gpu": found["gpu"], "torch": torch.__version__}
    rows = []
    for kind in ("unclipped", "clipped"):
        ours, theirs = (statistics.median(found["took"][name]) for name in (kind, f"torch_{kind}"))
        rows.append(
            {
                "name": f"gpu_clip_{framework}_{dtype}_{kind}",
                "unit": "us",
                "ours": ours,
                "ratio": theirs / ours,
                "peers": {"torch_foreach": {"value": theirs, "ratio": theirs / ours}},
                "samples": {"ours": found["took"][kind], "torch_foreach": found["took"][f"torch_{kind}"]},
                "config": config,
                "machine": machine,
            }
        )
    return rows


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def asked(address: str, framework: str, dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the ranks of a case; what the first one found, or why it found nothing."""
    world = WORLDS[framework]
    command = [sys.executable, __file__, "--rank", "--address", address, "--framework", framework, "--dtype", dtype]
    command += ["--samples", str(options.samples), "--layers", str(options.layers), "--width", str(options.width)]
    command += ["--emulate"] if options.emulate else []
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "GRADSYNC_KERNELS": str(options.kernels),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
    }
    ranks = [
        subprocess.Popen(command, env=clean_environment(**shared, RANK=str(rank)), stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    within = EMULATED_RANKS_S if options.emulate else RANKS_S
    end = time.monotonic() + within
    try:
        said = [rank.communicate(timeout=max(1.0, end - time.monotonic()))[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        return {"failed": f"the ranks were not done within {within:.0f} s"}
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode != 0 for rank in ranks):
        return {"failed": f"the ranks ended with {[rank.returncode for rank in ranks]}"}
    found: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return found


def wrong_in(found: dict[str, Any]) -> str:
    """Why a case has failed; empty: it has not."""
    if "failed" in found:
        return str(found["failed"])
    if not found["measured_by"].startswith("gradsync kernels"):
        return f"measured by {found['measured_by']}"
    off = {name: found[name] for name in ("norm_ulps", "product_ulps") if found[name] > 1}
    return f"units in the last place: {off}" if off else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--json", type=Path)
    for name in ("--framework", "--dtype", "--address"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(measured(options)), flush=True)
        return 0
    if options.kernels is None:
        parser.error("--kernels is missing")
    if not options.emulate and not torch.cuda.is_available():
        print("bench_clip: torch sees no GPU; nothing was measured", file=sys.stderr)
        return 69
    results: list[dict[str, Any]] = []
    failed = 0
    with Daemon() as daemon:
        for framework, dtype in CASES:
            found = asked(daemon.socket, framework, dtype, options)
            wrong = wrong_in(found)
            failed += bool(wrong)
            rows = [] if "failed" in found else results_of(framework, dtype, found)
            results += rows
            for row in rows:
                print(f"{row['name']:34} {row['ours']:10.1f} us  torch {row['ratio']:6.2f}x", flush=True)
            print(f"{framework} {dtype}: {wrong or 'norm and products within one unit in the last place'}", flush=True)
            # After each case: what was measured survives a run that is ended early.
            if options.json is not None:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
