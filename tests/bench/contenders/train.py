"""Blocks of training steps of the demo's model: `backend` is one of those in clients/python/examples/train_char.py,
or `meeting`, the bound of all that synchronise, or `measuring`, the bound of all that observe.

In a process that `gradsync observe` would have started, the training is observed by the hooks of that command.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn, optim

from gradsync.torch._observed import _watcher
from gradsync.torch._reduced import _observer

sys.path.append(str(Path(__file__).resolve().parents[3] / "clients" / "python" / "examples"))

import train_char


class Meeting(train_char.Ddp):
    """Ranks that wait for each other once in a step and exchange nothing: no synchronous training is faster."""

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, accumulate: int, max_norm: float) -> None:
        distributed.init_process_group("gloo")
        self.module = model
        self._optimizer = optimizer
        self._max_norm = max_norm

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def reduce_and_clip(self) -> float:
        distributed.barrier()
        return super().reduce_and_clip()


class Measuring(train_char.Ddp):
    """A bare loop over the gradients before the clip, one widening and one product each: no exact norm is cheaper."""

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, accumulate: int, max_norm: float) -> None:
        super().__init__(model, optimizer, accumulate, max_norm)
        self._held = list(model.parameters())
        self._room = torch.empty(max(one.numel() for one in self._held), dtype=torch.float64)

    def measure(self) -> float:
        sums = []
        with torch.no_grad():
            for parameter in self._held:
                flat = self._room[: parameter.numel()]
                flat.view(parameter.shape).copy_(parameter.grad)
                sums.append(torch.dot(flat, flat))
        return float(torch.stack(sums).sum().sqrt())

    def reduce_and_clip(self) -> float:
        self.measure()
        return super().reduce_and_clip()


train_char.BACKENDS |= {"meeting": Meeting, "measuring": Measuring}
_observer.PATIENCE_S = 60.0  # a busy machine must not make it leave steps out


class Contender:
    def __init__(self, rank: int, world_size: int, backend: str, accumulate: int, block: int) -> None:
        local_rank = rank % int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(world_size))
        self._run = train_char.Run(train_char.parse(["--backend", backend, "--accumulate", str(accumulate)]))
        self._block = block
        self._next_step = 0
        self._norm = 0.0
        self._loss = 0.0
        self._cpu_s = 0.0

    def fill(self) -> None:
        """A training needs nothing between its steps."""

    def step(self) -> None:
        begin = time.process_time()
        for step in range(self._next_step, self._next_step + self._block):
            self._loss = self._run.forward_backward(step)
            self._norm = self._run.backend.step()
        self._next_step += self._block
        self._cpu_s = (time.process_time() - begin) / self._block

    def result(self) -> dict[str, Any]:
        found = {"norm": self._norm, "loss": self._loss, "step": self._next_step, "cpu_s": self._cpu_s}
        watcher = _watcher.of_command()
        observer = getattr(self._run.backend, "observer", None) if watcher is None else watcher._observer
        if observer is not None:
            seen = observer.wait()
            found |= {"skipped": observer.skipped, "observed": None if seen is None else seen.report.norm}
        return found

    def close(self) -> None:
        self._run.backend.close()
