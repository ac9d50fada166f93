"""One rank of the test of optimizers beside torch's usual ones: two processes, and Gloo for what an optimizer sends.

Every case trains one model by gradsync and a twin by a plain loop, whose gradients are the mean of both ranks' data.
Started by test_torch_optimizers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from live_cases import run_cases
from models import loss_of, mlp
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

import gradsync.torch as gst

STEPS = 6
F32 = torch.float32


def muon(model: nn.Module) -> list[Optimizer]:
    """Muon takes matrices alone."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [Muon(matrices, lr=0.02), AdamW(others, lr=0.01)]


def adamw(model: nn.Module) -> list[Optimizer]:
    return [AdamW(model.parameters(), lr=0.01)]


def zero_redundancy(model: nn.Module) -> list[Optimizer]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns, which is an error in the process of the test

    return [ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01)]


def mean_gradients(model: nn.Module, step: int) -> None:
    parts = []
    for part in range(2):
        loss_of(model, step, part, F32).backward()
        parts.append([p.grad for p in model.parameters()])
        model.zero_grad()
    for parameter, first, second in zip(model.parameters(), *parts, strict=True):
        parameter.grad = (first + second) / 2


def bits(model: nn.Module) -> list[list[int]]:
    return [p.detach().reshape(-1).view(torch.int32).tolist() for p in model.parameters()]


def train(
    name: str, ours: Callable[[nn.Module], list[Optimizer]], plain: Callable[[nn.Module], list[Optimizer]], halves: bool
) -> dict[str, Any]:
    model, twin = mlp(dtype=F32), mlp(dtype=F32)
    optimizers, twins = ours(model), plain(twin)
    found: dict[str, Any] = {"same": [], "moved": []}
    with gst.attach(model, job=name) as gs:
        for step in range(STEPS):
            before = bits(model)
            loss_of(model, step, torch.distributed.get_rank(), F32).backward()
            if halves:
                gs.finish()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            else:
                gs.step(optimizers)
            mean_gradients(twin, step)
            for optimizer in twins:
                optimizer.step()
                optimizer.zero_grad()
            found["same"].append(bits(model) == bits(twin))
            found["moved"].append(all(one != other for one, other in zip(before, bits(model), strict=True)))
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "muon": lambda: train("muon", muon, muon, halves=False),
    "muon_in_halves": lambda: train("muon_in_halves", muon, muon, halves=True),
    "zero_redundancy": lambda: train("zero_redundancy", zero_redundancy, adamw, halves=False),
    "zero_redundancy_in_halves": lambda: train("zero_redundancy_in_halves", zero_redundancy, adamw, halves=True),
}


if __name__ == "__main__":
    run_cases("optimizers", CASES)
