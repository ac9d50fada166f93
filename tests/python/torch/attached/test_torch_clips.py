"""torch's own clip functions in the loop of an attached module: refused while its gradients are each rank's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import assert_same_bits, loss_of, mlp, weights
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # as scripts do, long before they attach

from gradsync import Clip
from gradsync.errors import UsageError

_utils: Any = nn.utils
TOTAL: Callable[..., Any] | None = getattr(_utils, "get_total_norm", None)  # since torch 2.6
HALVES = pytest.mark.skipif(TOTAL is None, reason="this torch has no clip in halves")


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


CALLS = {
    "norm": lambda model: clip_grad_norm_(model.parameters(), 0.1),
    "norm of a part": lambda model: clip_grad_norm_(model[4].weight, 0.1),
    "looked up": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False),
    "value": lambda model: clip_grad_value_(model.parameters(), 1e-3),
    "total": lambda model: _utils.get_total_norm(gradients(model)),
    "halves": lambda model: _utils.clip_grads_with_norm_(model.parameters(), 0.1, torch.tensor(5.0)),
}


@pytest.mark.parametrize(
    "call", [pytest.param(name, marks=HALVES if name in ("total", "halves") else ()) for name in CALLS]
)
def test_a_clip_before_the_step_is_refused_at_its_first_call(ranks: Any, call: str) -> None:
    def body(rank: int, attach: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        norms = []
        with attach(model, clip=Clip(max_norm=0.5)) as gs:
            for step in range(3):
                loss_of(model, step, rank).backward()
                before = [p.grad.clone() for p in model.parameters()]
                with pytest.raises(UsageError, match=r"own gradients \(.*4\.weight.*Clip\(max_norm.*gs\.finish"):
                    CALLS[call](model)
                if step == 0:  # later the daemon may be reducing already
                    assert all(map(torch.equal, before, gradients(model)))
                norms.append(gs.step(optimizer).norm)
        return norms, weights(model)

    def alone(rank: int, attach: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, clip=Clip(max_norm=0.5)) as gs:
            norms = []
            for step in range(3):
                loss_of(model, step, rank).backward()
                norms.append(gs.step(optimizer).norm)
        return norms, weights(model)

    (norms, first), (again, second) = ranks(2, body)
    expected, untouched = ranks(2, alone)[0]
    assert norms == again == expected
    assert_same_bits(first, second)
    assert_same_bits(first, untouched)


def test_a_clip_of_what_is_reduced_and_of_others_passes_bit_for_bit(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> dict[str, torch.Tensor]:
        model, other = mlp(), mlp(7)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model) as gs:
            for step in range(3):
                loss_of(model, step, rank).backward()
                loss_of(other, step, 0).backward()
                grads = [g.clone() for g in gradients(other)]
                plain = [nn.Parameter(g.clone()) for g in grads]
                for p, g in zip(plain, grads, strict=True):
                    p.grad = g
                norm = clip_grad_norm_(iter(other.parameters()), 0.05)
                assert torch.equal(norm, torch.linalg.vector_norm(torch.stack([p.norm() for p in plain])))
                coefficient = torch.clamp(0.05 / (norm + 1e-6), max=1.0)
                assert all(torch.equal(g * coefficient, h) for g, h in zip(grads, gradients(other), strict=True))
                copies = [nn.Parameter(g.clone()) for g in gradients(model)]
                for p in copies:
                    p.grad = p.detach().clone()
                assert clip_grad_norm_(copies, 1.0) > 0  # for a log
                other.zero_grad()
                gs.finish()
                assert clip_grad_norm_(model.parameters(), 0.1) > 0
                clip_grad_value_(model.parameters(), 1e-3)
                optimizer.step()
                optimizer.zero_grad()
        loss_of(model, 3, rank).backward()
        assert clip_grad_norm_(model.parameters(), 0.1) > 0  # a plain module again
        return weights(model)

    first, second = ranks(2, body)
    assert_same_bits(first, second)


def test_a_compiled_clip_of_others_still_compiles(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> bool:
        with attach(mlp()):
            pass
        other = mlp(3)
        loss_of(other, 0, 0).backward()
        expected = mlp(3)
        loss_of(expected, 0, 0).backward()
        compiled = torch.compile(clip_grad_norm_, backend="eager", fullgraph=True)
        same = torch.equal(compiled(list(other.parameters()), 0.1), clip_grad_norm_(expected.parameters(), 0.1))
        return same and all(map(torch.equal, gradients(other), gradients(expected)))

    assert ranks(1, body) == [True]
