"""One rank of the test of optimizers beside torch's usual ones: two processes, and Gloo for what an optimizer sends.

Every case trains one model by gradsync, or by torch's DDP with gradsync's clip, and a twin by a plain loop, whose
gradients are the mean of both ranks' data. Started by test_torch_optimizers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from live_cases import run_cases
from models import loss_of, mlp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Muon, Optimizer

import gradsync.torch as gst

STEPS = 6
MAX_NORM = 0.05  # below every norm of these models
F32 = torch.float32
Make = Callable[[nn.Module], list[Optimizer]]


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


def adamw_8bit(model: nn.Module) -> list[Optimizer]:
    """That of bitsandbytes, with states of 8 bits for tensors as small as these, too."""
    from bitsandbytes.optim import AdamW8bit

    return [AdamW8bit(model.parameters(), lr=0.01, min_8bit_size=1)]


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


def step_alone(twin: nn.Module, optimizers: list[Optimizer], step: int, max_norm: float | None = None) -> None:
    """The mean of all data, and torch's clip by the exact norm in the type of the gradients."""
    mean_gradients(twin, step)
    if max_norm is not None:
        norm = get_total_norm([p.grad.double() for p in twin.parameters()]).to(F32)
        clip_grads_with_norm_(twin.parameters(), max_norm, norm)
    step_and_clear(optimizers)


def step_and_clear(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def compared(model: nn.Module, twin: nn.Module, optimizers: list[Optimizer], step: Callable[[int], None]) -> Any:
    """After every step: whether both have equal bits, and whether every tensor moved. And what kept the states."""
    found: dict[str, Any] = {"same": [], "moved": []}
    for number in range(STEPS):
        before = bits(model)
        step(number)
        found["same"].append(bits(model) == bits(twin))
        found["moved"].append(all(one != other for one, other in zip(before, bits(model), strict=True)))
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    kept = {str(one.dtype) for state in states for one in state.values() if isinstance(one, torch.Tensor)}
    return found | {"states": sorted(kept)}


def synced(name: str, ours: Make, plain: Make, halves: bool) -> dict[str, Any]:
    """gradsync reduces, in DDP's place."""
    model, twin = mlp(dtype=F32), mlp(dtype=F32)
    optimizers, twins = ours(model), plain(twin)
    with gst.attach(model, job=name) as gs:

        def step(number: int) -> None:
            loss_of(model, number, torch.distributed.get_rank(), F32).backward()
            if halves:
                gs.finish()
                step_and_clear(optimizers)
            else:
                gs.step(optimizers)
            step_alone(twin, twins, number)

        return compared(model, twin, optimizers, step)


def clipped(name: str, ours: Make, plain: Make) -> dict[str, Any]:
    """DDP reduces, and gradsync clips in the place of torch's clip."""
    model, twin = DistributedDataParallel(mlp(dtype=F32)), mlp(dtype=F32)
    optimizers, twins = ours(model), plain(twin)
    gst.init(model, job=name)

    def step(number: int) -> None:
        loss_of(model, number, torch.distributed.get_rank(), F32).backward()
        norm = gst.clip_grad_norm_(model.parameters(), MAX_NORM)
        assert norm > MAX_NORM
        step_and_clear(optimizers)
        step_alone(twin, twins, number, MAX_NORM)

    found = compared(model, twin, optimizers, step)
    gst.close()
    return found


OPTIMIZERS = {"muon": (muon, muon), "zero_redundancy": (zero_redundancy, adamw), "adamw_8bit": (adamw_8bit, adamw_8bit)}
LOOPS: dict[str, Callable[[str, Make, Make], dict[str, Any]]] = {
    "synced": lambda *given: synced(*given, halves=False),
    "in_halves": lambda *given: synced(*given, halves=True),
    "clipped": clipped,
}


def case(loop: str, optimizer: str) -> dict[str, Any]:
    return LOOPS[loop](f"{optimizer}_{loop}", *OPTIMIZERS[optimizer])


CASES = {f"{optimizer}_{loop}": partial(case, loop, optimizer) for optimizer in OPTIMIZERS for loop in LOOPS}


if __name__ == "__main__":
    run_cases("optimizers", CASES)
