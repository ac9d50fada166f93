"""Turn about, a training step and a comparison of a part of the weights, of one rank in mode `clip`."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import gradsync.torch as gst


class Contender:
    def __init__(self, rank: int, world_size: int, width: int, layers: int, rows: int) -> None:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
        torch.manual_seed(0)
        self._model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._input = torch.randn(rows, width)
        session: Any = gst.init(self._model, mesh={"dp": world_size})
        self._watch = session._weights
        self._compares = False  # in the coming turn
        self._part = 0

    def fill(self) -> None:
        """Neither needs anything."""

    def step(self) -> None:
        if self._compares:
            part = self._part
            found = self._watch._compare(lambda index: self._watch._part_of[index] == part, None)
            assert not found
            self._part = (part + 1) % self._watch._parts
        else:
            self._model(self._input).square().mean().backward()
            gst.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._compares = not self._compares

    def result(self) -> dict[str, Any]:
        return {"parts": self._watch._parts, "elements": sum(p.numel() for p in self._model.parameters())}

    def close(self) -> None:
        gst.close()
