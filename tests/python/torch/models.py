"""Small models, their data, and the plain single-process training that the ranks have to equal.

In float64 unless a test says otherwise, so that what differs after many steps is a fault and not rounding.
"""

from __future__ import annotations

import copy
import threading

import torch
from torch import nn
from torch.nn.functional import mse_loss

_seeding = threading.Lock()  # ranks are threads, and torch's generator is one


def mlp(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    with _seeding:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batch(step: int, part: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1000 * step + part)
    return torch.randn(4, 6, generator=made).to(dtype), torch.randn(4, 3, generator=made).to(dtype)


def loss_of(model: nn.Module, step: int, part: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x, y = batch(step, part, dtype)
    return mse_loss(model(x), y)


def train_alone(model: nn.Module, steps: int, parts: int, max_norm: float | None = None, formula: str = "torch"):
    """All ranks' parts in one process; returns the model and the norms before clipping."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        sum(loss_of(model, step, part) for part in range(parts)).div(parts).backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norms.append(float(norm))
        if max_norm is not None and (formula == "torch" or norm > max_norm):
            torch._foreach_mul_([p.grad for p in model.parameters()], coefficient(float(norm), max_norm, formula))
        optimizer.step()
    return model, norms


def coefficient(norm: float, max_norm: float, formula: str) -> float:
    return min(1.0, max_norm / (norm + 1e-6)) if formula == "torch" else max_norm / norm


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], relative: float = 1e-6) -> None:
    """Per tensor, relative to the tensor's norm."""
    assert ours.keys() == theirs.keys()
    for name, their in theirs.items():
        difference = (ours[name].double() - their.double()).norm() / their.double().norm().clamp_min(1e-30)
        assert difference <= relative, f"{name}: {difference}"
