"""Trains a character model on every rank of a torchrun: through gradsyncd, or with torch's own DistributedDataParallel.

    gradsyncd run -- torchrun --nproc-per-node 2 clients/python/examples/train_char.py --backend gradsync

`Sidecar` and `Ddp` are the two ways, `Observed` is `Ddp` with a second opinion; everything else is the same. With
`--json PREFIX` rank r writes PREFIX.r, a JSON object per line: one for each step, one for each checked step, one at the
end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from char_model import CharModel, draw, read_text
from torch import distributed, nn


class Sidecar:
    """gradsync: attach once, and one call that reduces, clips, steps and zeroes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, accumulate: int, max_norm: float) -> None:
        import gradsync
        import gradsync.torch

        self.module = model
        self._optimizer = optimizer
        self._gs = gradsync.torch.attach(
            model, accumulate=accumulate, clip=gradsync.Clip(max_norm=max_norm), formula="torch"
        )

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def reduce_and_clip(self) -> float:
        return self._gs.finish().norm

    def step(self) -> float:
        return self._gs.step(self._optimizer).norm

    def lost(self, error: Exception) -> bool:
        return getattr(error, "step_lost", False)

    def close(self) -> None:
        self._gs.close()


class Ddp:
    """torch: the wrapper overlaps its all-reduce with backward; clipping comes after."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, accumulate: int, max_norm: float) -> None:
        distributed.init_process_group("gloo")
        self.module = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._optimizer = optimizer
        self._max_norm = max_norm

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if last else self.module.no_sync()

    def reduce_and_clip(self) -> float:
        return float(nn.utils.clip_grad_norm_(self.module.parameters(), self._max_norm))

    def step(self) -> float:
        norm = self.reduce_and_clip()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    def lost(self, error: Exception) -> bool:
        return False

    def close(self) -> None:
        distributed.destroy_process_group()


class Observed(Ddp):
    """torch as before, with gradsync measuring beside it: `last_report()` has the second opinion."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, accumulate: int, max_norm: float) -> None:
        import gradsync.torch

        super().__init__(model, optimizer, accumulate, max_norm)
        self.observer = gradsync.torch.init(model, mode="observe")
        self._clip = gradsync.torch.clip_grad_norm_

    def reduce_and_clip(self) -> float:
        return float(self._clip(self.module.parameters(), self._max_norm))

    def close(self) -> None:
        import gradsync.torch

        gradsync.torch.close()
        super().close()


BACKENDS = {"gradsync": Sidecar, "ddp": Ddp, "observe": Observed}


class Run:
    """One rank of one training."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.text = read_text()
        torch.manual_seed(options.seed)  # equal weights everywhere: attach compares them
        self.model = CharModel(options.context, options.width, options.layers, options.heads)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.steps_lost = 0  # and computed anew
        self.backend = BACKENDS[options.backend](self.model, self.optimizer, options.accumulate, options.max_norm)

    def forward_backward(self, step: int) -> float:
        """All micro-batches of a step; returns this rank's mean loss."""
        options, total = self.options, torch.zeros(())
        for micro in range(options.accumulate):
            tokens, targets = draw(self.text, options.batch, options.context, options.seed, step, self.rank, micro)
            with self.backend.micro_batch(last=micro == options.accumulate - 1):
                loss = self.backend.module(tokens, targets) / options.accumulate
                loss.backward()
            total += loss.detach()
        return total.item()

    def compute(self, step: int, end: Callable[[], float]) -> tuple[float, float]:
        """Loss and norm of a step; computed anew when the sidecar was restarted in the middle of it."""
        while True:
            loss = self.forward_backward(step)
            try:
                return loss, end()
            except Exception as error:
                if not self.backend.lost(error):
                    raise
            self.steps_lost += 1

    def train(self) -> Iterator[dict[str, object]]:
        for step in range(self.options.steps):
            if self.options.checks is not None and step % self.options.check_every == 0:
                yield self.check(step)
            start = time.perf_counter()
            loss, norm = self.compute(step, self.backend.step)
            elapsed = time.perf_counter() - start
            yield {"kind": "step", "step": step, "loss": loss, "norm": norm, "step_ms": elapsed * 1e3}
        yield {
            "kind": "end",
            "backend": self.options.backend,
            "world_size": self.world_size,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "weights": digest(p.detach() for p in self.model.parameters()),
            "steps_lost": self.steps_lost,
        }

    def check(self, step: int) -> dict[str, object]:
        """Gradients of this step at the weights that the gradsync run has here, reduced and clipped by this backend.

        The gradsync run leaves its weights and results in the folder; the ddp run visits them and goes back to its own.
        """
        path = self.options.checks / f"step-{step}.pt"
        own = {name: value.clone() for name, value in self.model.state_dict().items()}
        visiting = self.options.backend != "gradsync"
        saved = torch.load(path) if visiting else None
        if saved is not None:
            self.model.load_state_dict(saved["weights"])
        loss, norm = self.compute(step, self.backend.reduce_and_clip)
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.optimizer.zero_grad()
        self.model.load_state_dict(own)
        record = {"kind": "check", "step": step, "loss": loss, "norm": norm, "gradients": digest(gradients.values())}
        record["weights"] = digest(own.values())
        record["norm_error"] = norm_error(norm, gradients, self.options.max_norm)
        if saved is not None:
            record["relative_difference"] = relative_difference(gradients, saved["gradients"])
        elif self.rank == 0:
            torch.save({"weights": own, "gradients": gradients}, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        return record


def relative_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest ‖a - b‖ / ‖b‖ over all tensors."""
    return max(
        float((ours[name].double() - their.double()).norm() / their.double().norm().clamp_min(1e-300))
        for name, their in theirs.items()
    )


def norm_error(norm: float, clipped: dict[str, torch.Tensor], max_norm: float) -> float:
    """The relative error of a norm against float64, from the gradients that it clipped; known to a rounding, 6e-8."""
    coefficient = min(1.0, max_norm / (norm + 1e-6))
    exact = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in clipped.values())) / coefficient
    return abs(norm - exact) / exact


def digest(tensors: Iterator[torch.Tensor]) -> str:
    """Equal only for equal bits."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hashed.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


class Turns:
    """Lets another process say when the next block of steps may begin; demo.py alternates two trainings with it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._grants = open(folder / f"grant-{rank}", "rb", buffering=0)  # noqa: SIM115
        self._done = open(folder / "done", "wb", buffering=0)  # noqa: SIM115

    def wait(self) -> None:
        self._done.write(b".")
        if not self._grants.read(1):
            raise SystemExit("the process that gives the turns is gone")


def read_records(prefix: Path, world_size: int) -> list[list[dict[str, object]]]:
    """What each rank wrote."""
    return [
        [json.loads(line) for line in Path(f"{prefix}.{rank}").read_text().splitlines()] for rank in range(world_size)
    ]


def step_times_ms(records: list[list[dict[str, object]]], warm_up: int = 5) -> list[float]:
    """The time of the slowest rank in each step, without the first ones."""
    by_rank = [[float(r["step_ms"]) for r in rank if r["kind"] == "step"] for rank in records]  # type: ignore[arg-type]
    return [max(times) for times in zip(*by_rank, strict=True)][warm_up:]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="gradsync")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches in a step")
    parser.add_argument("--batch", type=int, default=3, help="sequences in a micro-batch of a rank")
    parser.add_argument("--context", type=int, default=64, help="characters in a sequence")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--max-norm", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="rank r writes its records to JSON.r")
    parser.add_argument("--checks", type=Path, help="folder for the gradients that two runs compare")
    parser.add_argument("--check-every", type=int, default=20)
    parser.add_argument("--turns", type=Path, help="folder of the pipes of demo.py")
    parser.add_argument("--block", type=int, default=10, help="steps in a turn")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    run = Run(options)
    turns = Turns(options.turns, run.rank) if options.turns else None
    records = open(f"{options.json}.{run.rank}", "w") if options.json else None  # noqa: SIM115
    times: list[float] = []
    if turns:
        turns.wait()
    for record in run.train():
        if records:
            print(json.dumps(record), file=records, flush=True)
        if record["kind"] != "step":
            continue
        step = int(record["step"])  # type: ignore[call-overload]
        times.append(float(record["step_ms"]))  # type: ignore[arg-type]
        if run.rank == 0 and not turns and (step % 10 == 9 or step == 0):
            print(
                f"step {step + 1:4}/{options.steps}  loss {record['loss']:.4f}  norm {record['norm']:.4f}  "
                f"{statistics.median(times[-10:]):.0f} ms",
                flush=True,
            )
        if turns and step % options.block == options.block - 1:
            turns.wait()
    run.backend.close()


if __name__ == "__main__":
    main()
