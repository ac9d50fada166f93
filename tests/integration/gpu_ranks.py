"""Ranks whose gradients lie on a GPU, as processes that a test tells what to do.

This file is also the program of a rank, `python gpu_ranks.py ADDRESS JOB RANK WORLD`, behind which may follow how many
ranks its node has, and the address of the coordinator. $TP ranks that follow each other are a group of tensor
parallelism, which has equal gradients of all but "rows". It reads a line of JSON for each order and answers with one.
The driver it loads is `libcuda_fake.so`, whose memory the daemon's workers really map; or, where GRADSYNC_LIBCUDA is
empty, that of a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from daemon import BINARY, DEADLINE_S, clean_environment
from warm_python import WarmProcess

import gradsync
from gradsync._gpu._driver import driver

LIBRARIES = Path(BINARY).parents[1] / "lib"
KERNELS, DRIVER = LIBRARIES / "libgradsync_kernels_emulated.so", LIBRARIES / "libcuda_fake.so"
GPUS = [f"GPU-5a4d2c1e-0000-4000-8000-{number:012}" for number in (1, 2)]
MEMORY = "emulated-gpu-memory"  # in the maps of a process, a line for each mapping of it
SHAPES = {"weight": ((300, 70), "float32"), "bias": ((333,), "bfloat16"), "scale": ((5,), "float64")}
NEEDED = 84_032 + 704 + 64  # bytes of an arena for them
OFFSET = 4096  # where memory that a rank allocates itself begins in its allocation
GARBAGE = 0xFF  # what is in it before; as floats it is NaN


def options(*more: str) -> tuple[str, ...]:
    """What a daemon that may use the emulated GPUs is started with."""
    return ("--gpu-kernels", str(KERNELS), "--gpu-devices", ",".join(GPUS), *more)


def workers_of(daemon: int) -> list[int]:
    """The pids of the workers that a daemon has."""
    found = []
    for task in Path(f"/proc/{daemon}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
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

    def __init__(
        self,
        address: str,
        job: str,
        rank: int,
        world: int = 2,
        gpu: str = GPUS[0],
        over: tuple[int, str] | None = None,
        **env: str,
    ) -> None:
        """`over`: how many ranks its node has, and where the coordinator is, of a job over several nodes."""
        to_rank, orders = os.pipe()
        answers, from_rank = os.pipe()
        self._process = WarmProcess(
            [__file__, address, job, str(rank), str(world), *map(str, over or ())],
            clean_environment(**{"GRADSYNC_LIBCUDA": str(DRIVER), "CUDA_VISIBLE_DEVICES": gpu, **env}),
            (to_rank, from_rank, 2),
        )
        os.close(to_rank)
        os.close(from_rank)
        self._orders, self._answers = open(orders, "w"), open(answers)  # noqa: SIM115
        self.pid = self._process.pid

    def __enter__(self) -> GpuRank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.close()
        with contextlib.suppress(BrokenPipeError):  # an order that nobody read
            self._orders.close()
        self._answers.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def tell(self, do: str, **arguments: object) -> None:
        self._orders.write(json.dumps({"do": do, **arguments}) + "\n")
        self._orders.flush()

    def answer(self) -> dict[str, Any]:
        line = self._answers.readline()
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


class Program:
    """What a rank does when it is told to, in whatever process."""

    def __init__(self, address: str, job: str, rank: int, world: int, local: int = 0, coordinator: str = "") -> None:
        self._rank = rank
        self._over: dict[str, Any] = {"local_world_size": local, "coordinator": coordinator} if local else {}
        self._join = {"address": address, "job": f"{job}-module", "rank": rank, "world_size": world}
        self._client = gradsync.connect(address)
        self._name, self._world, self._halts = job, world, False
        self._tp = int(os.environ.get("TP", "1"))
        if self._tp > 1:
            self._over["meshes"] = {"grid": {"dp": world // self._tp, "tp": self._tp}}
        self.attach()
        self._grads: gradsync.Grads | None = None
        self._beside: torch.Tensor | None = None  # the whole allocation, of which the arena is a part
        self._given: torch.Tensor | None = None
        self._shapes = dict(SHAPES)

    def _registered(self, *arguments: Any) -> int:
        buffer = self._adopt(*arguments)
        if self._halts:
            print(json.dumps({"registered": buffer}), flush=True)
            sys.stdin.readline()
        return buffer

    def declare(
        self,
        device: str = "cpu",
        memory: str | None = None,
        keep: bool = True,
        large: int = 0,
        halts: bool = False,
        dtype: str = "float32",
        timeout: float = DEADLINE_S,
    ) -> dict[str, Any]:
        """`memory`: how it lies in a new allocation of this rank, which `keep` holds beside the arena; or "again".

        `large`: elements of one more tensor, of `dtype`. `halts`: when the memory is registered the rank says so, and
        waits for a line."""
        self._halts = halts
        if memory is not None and memory != "again":
            self._given = self._allocated(memory)
        given = None if memory is None else self._given
        self._shapes = SHAPES | ({"large": ((large,), dtype)} if large else {})
        sync = {"dp": gradsync.Partial("mean") >> gradsync.Replicate()}
        whole = {**sync, "tp": gradsync.Replicate()} if self._tp > 1 else sync
        tensors = [
            gradsync.Tensor(name, shape, dtype=dtype, placements=whole) for name, (shape, dtype) in self._shapes.items()
        ]
        if self._tp > 1:
            cut = {**sync, "tp": gradsync.Shard(0)}
            rows = gradsync.Tensor("rows", (8 * self._tp, 31), dtype="float32", placements=cut, local_shape=(8, 31))
            tensors.append(rows)
            self._shapes["rows"] = ((8, 31), "float32")
        clip = gradsync.Clip(max_norm=1.0)
        self._grads = self._job.declare(tensors, clip=clip, device=device, memory=given, timeout=timeout)
        if not keep:
            self._beside = self._given = None
        return {"digest": self._grads.plan_digest}

    def _allocated(self, memory: str) -> torch.Tensor:
        if memory == "torch" and driver().device_type == "cuda":  # an emulated GPU has no allocator of torch
            return torch.empty(NEEDED, dtype=torch.uint8, device="cuda")
        whole = self._beside = gradsync.alloc_grad_buffer(OFFSET + 2 * NEEDED).fill_(GARBAGE)
        if memory == "unshared":
            os.environ["GRADSYNC_FAKE_CUDA_UNSHARED"] = str(whole.data_ptr())
        return {
            "whole": whole,
            "torch": whole,
            "part": whole[OFFSET : OFFSET + NEEDED],
            "odd": whole[OFFSET + 8 : OFFSET + 8 + NEEDED],
            "small": whole[OFFSET : OFFSET + NEEDED - 1],
            "gaps": whole[OFFSET : OFFSET + 2 * NEEDED : 2],
            "unshared": whole[OFFSET:],
        }[memory]

    def beside(self) -> dict[str, Any]:
        """Whether the memory beside an arena that is a "part" is as it was."""
        assert self._beside is not None
        before, after = self._beside[:OFFSET], self._beside[OFFSET + NEEDED :]
        return {"as_before": bool((before == GARBAGE).all() and (after == GARBAGE).all())}

    def step(
        self,
        seed: int,
        timeout: float = DEADLINE_S,
        frees: bool = False,
        fills: bool = True,
        whole: bool = False,
        special: dict[str, str] | None = None,
        unused: list[str] | None = None,
        exact: bool = False,
    ) -> dict[str, Any]:
        """`whole`: gradients are small whole numbers, whose sums are the same in any order. `exact`: says how far the
        outputs are `off`, where every rank has a gradient of each tensor that no other has.

        `special`: of a rank, as text, the tensor in whose first element it has another value, or NaN where the name is
        followed by "=nan". `unused`: tensors without a gradient.

        `frees`: the arena, by the driver, when its gradients are written; they are not looked at afterwards.

        Without `fills` gradients stay what they are, and are not looked at either."""
        assert self._grads is not None
        other, _, to = (special or {}).get(str(self._rank), "").partition("=")
        for number, name in enumerate(self._shapes if fills else ()):
            held = self._grads.input(name).torch()
            of = self._rank if name == "rows" else self._rank // self._tp * self._tp
            values = self._drawn(held.shape, 1000 * seed + 10 * number + of, whole)
            if name == other:
                values.view(-1)[0] = float(to or 77)
            held.copy_(values.to(held.dtype))
        if frees:
            driver().free(0, driver().export(0, held.data_ptr()).base)
        for name in self._shapes:
            (self._grads.mark_unused if name in (unused or ()) else self._grads.ready)(name)
        report = self._grads.finish(timeout=timeout)
        if frees or not fills:
            return {"norm": report.norm, "clipped": report.clipped}
        outputs = [self._grads.output(name).torch().contiguous().cpu() for name in self._shapes]
        parts = [output.view(torch.uint8).numpy().tobytes() for output in outputs]
        found: dict[str, Any] = {
            "nonfinite": [[one.tensor, one.count, [each.rank for each in one.inputs]] for one in report.nonfinite],
            "divergence": [[one.tensor, one.ranks] for one in report.divergence],
            "absent": list(report.absent),
        }
        if exact:
            found["off"] = self._off(outputs, seed, whole, report.coefficient)
        bits = hashlib.sha256(b"".join(parts)).hexdigest()
        return {"norm": report.norm, "bits": bits, "clipped": report.clipped, **{k: v for k, v in found.items() if v}}

    @staticmethod
    def _drawn(shape: Any, seed: int, whole: bool) -> torch.Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return values.mul(2).round() if whole else values

    def _off(self, outputs: list[torch.Tensor], seed: int, whole: bool, coefficient: float) -> float:
        """The largest distance of an element from its exact mean, multiplied: 1 is what float32 (float64) sums in
        whatever order, the division, the product and the roundings of both can come to."""
        worst = 0.0
        for number, output in enumerate(outputs):
            seeds = [1000 * seed + 10 * number + rank for rank in range(self._world)]
            given = [self._drawn(output.shape, each, whole).to(output.dtype).double() for each in seeds]
            factor = coefficient / self._world
            exact = factor * torch.stack(given).sum(0)
            added = factor * torch.stack(given).abs().sum(0)
            sums = 2.0**-53 if output.dtype == torch.float64 else 2.0**-24
            bound = 2 * self._world * sums * added + 3 * torch.finfo(output.dtype).eps / 2 * exact.abs()
            worst = max(worst, float(((output.double() - exact).abs() / bound.clamp(min=1e-300)).max()))
        return worst

    def train(self, device: str, steps: int) -> dict[str, Any]:
        """The gradients of a module. They are small whole numbers before they are summed: each device has the same."""
        import gradsync.torch as gst
        import gradsync.torch._synced._attach as attaching

        emulated = device == "cuda" and driver().device_type == "cpu"
        if emulated:  # its memory is memory that this CPU reads as well
            attaching._memory_of = lambda found: "cuda"
        model = torch.nn.Sequential(torch.nn.Linear(48, 256), torch.nn.ReLU(), torch.nn.Linear(256, 7))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=generator))
        model.to("cpu" if emulated else device)
        found = []
        clip = gradsync.Clip(max_norm=0.5)
        with gst.attach(model, clip=clip, timeout=DEADLINE_S, **self._join) as gs:  # type: ignore[arg-type]
            for step in range(steps):
                generator = torch.Generator().manual_seed(1000 * step + self._rank)
                inputs, weights = (torch.randint(-2, 3, (16, size), generator=generator).float() for size in (48, 7))
                place = next(model.parameters()).device
                (model(inputs.to(place)) * weights.to(place)).sum().backward()
                report = gs.finish(timeout=DEADLINE_S)
                grads = [parameter.grad for parameter in model.parameters()]
                parts = [grad.cpu().contiguous().numpy().tobytes() for grad in grads if grad is not None]
                found.append({"norm": report.norm, "bits": hashlib.sha256(b"".join(parts)).hexdigest()})
                model.zero_grad()
        return {"steps": found}

    def probe(self, device: str = "cuda", memory: str | None = None) -> dict[str, Any]:
        """`memory`: as for `declare`."""
        given = None if memory is None else self._allocated(memory)
        found = self._client.probe_gpu("cpu" if memory else device, given, timeout=DEADLINE_S)
        kept = given is None or bool((given == GARBAGE).all())
        return {"device": found.device, "mapped_bytes": found.mapped_bytes, "open_s": found.open_s, "kept": kept}

    def detach(self) -> dict[str, Any]:
        self._job.detach()
        self._grads = None
        return {}

    def close(self) -> None:
        self._client.close()

    def attach(self) -> dict[str, Any]:
        """Again, after `detach`."""
        self._job = self._client.attach(
            self._name, rank=self._rank, world_size=self._world, timeout=DEADLINE_S, **self._over
        )
        self._adopt = self._job._declaring.adopt
        self._job._declaring.adopt = self._registered  # type: ignore[method-assign]
        return {}


def _main() -> None:
    address, job, rank, world, *over = sys.argv[1:]
    program = Program(address, job, int(rank), int(world), *([int(over[0]), over[1]] if over else []))  # type: ignore[arg-type]
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
