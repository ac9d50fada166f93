"""Blocks of training steps of the demo's model: `backend` is one of those in clients/python/examples/train_char.py,
or `meeting`, the bound of all of them."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from torch import distributed, nn, optim

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


train_char.BACKENDS["meeting"] = Meeting


class Contender:
    def __init__(self, rank: int, world_size: int, backend: str, accumulate: int, block: int) -> None:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
        self._run = train_char.Run(train_char.parse(["--backend", backend, "--accumulate", str(accumulate)]))
        self._block = block
        self._next_step = 0
        self._norm = 0.0
        self._loss = 0.0

    def fill(self) -> None:
        """A training needs nothing between its steps."""

    def step(self) -> None:
        for step in range(self._next_step, self._next_step + self._block):
            self._loss = self._run.forward_backward(step)
            self._norm = self._run.backend.step()
        self._next_step += self._block

    def result(self) -> dict[str, Any]:
        found = {"norm": self._norm, "loss": self._loss, "step": self._next_step}
        if (observer := getattr(self._run.backend, "observer", None)) is not None:
            seen = observer.wait()
            found |= {"skipped": observer.skipped, "observed": None if seen is None else seen.report.norm}
        return found

    def close(self) -> None:
        self._run.backend.close()
