"""Norm and clip of DTensor gradients that fully_shard has just made: by gradsync.torch or by torch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradsync.torch as gst

MAX_NORM = 1e-3  # always below the norm: every step multiplies


class Weights(nn.Module):
    def __init__(self, tensors: int, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.linspace(-1, 1, elements) + i / tensors for i in range(tensors))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for weight in self.weights:
            total = total + (weight * weight * factor).sum()
        return total


class Contender:
    def __init__(self, rank: int, world_size: int, backend: str, tensors: int, elements: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        self._mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        self._module = Weights(tensors, elements)
        fully_shard(self._module, mesh=self._mesh)
        self._rank = rank
        self._steps = 0
        self._norm = torch.zeros(())
        self._clip = torch.nn.utils.clip_grad_norm_
        if backend == "gradsync":
            gst.init(self._module, mesh=self._mesh, mode="clip")
            self._clip = gst.clip_grad_norm_

    def fill(self) -> None:
        self._module.zero_grad()
        self._steps += 1
        self._module(torch.tensor(1.0 + (self._rank + self._steps) / 16)).backward()

    def step(self) -> None:
        self._norm = self._clip(self._module.parameters(), MAX_NORM)

    def result(self) -> dict[str, float]:
        gradients = [p.grad.to_local() for p in self._module.parameters() if p.grad is not None]
        clipped = sum(float(g.double().square().sum()) for g in gradients)
        return {"step": self._steps, "norm": float(self._norm.full_tensor()), "clipped_sum_of_squares": clipped}

    def close(self) -> None:
        gst.close()
        dist.destroy_process_group()
