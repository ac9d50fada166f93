"""Blocks of training steps of the demo's model: `backend` is one of those in clients/python/examples/train_char.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3] / "clients" / "python" / "examples"))

import train_char


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
