"""`scale=` of one's own: a step with gradients that are not finite is skipped, whatever the clip group was declared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from models import assert_same_bits, loss_of, mlp, weights

from gradsync import Clip

SCALE = 8.0


def in_one(gs: Any, optimizer: Any) -> Any:
    return gs.step(optimizer, scale=SCALE, zero_grad=False)


def in_halves(gs: Any, optimizer: Any) -> Any:
    report = gs.finish(scale=SCALE)
    optimizer.step()
    return report


@pytest.mark.parametrize("end", [in_one, in_halves])
@pytest.mark.parametrize("nonfinite", ["propagate", "skip", "zero", "raise"])
def test_nan_on_one_rank_drops_the_gradients_of_all(ranks, nonfinite, end):
    def body(rank: int, attach: Any) -> dict[str, torch.Tensor]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with attach(model, clip=Clip(max_norm=1.0, nonfinite=nonfinite)) as gs:
            for step in range(3):
                (loss_of(model, step, rank) * (math.nan if (step, rank) == (1, 1) else SCALE)).backward()
                before = weights(model)
                report = end(gs, optimizer)
                assert (report.skipped, report.found_inf) == (step == 1, step == 1)
                assert gs.report == report
                if step == 1:
                    assert report.action == "skip"
                    assert all(p.grad is None for p in model.parameters())
                    assert_same_bits(weights(model), before)
                else:
                    assert all(p.grad.isfinite().all() for p in model.parameters())
                    assert not torch.equal(before["0.weight"], weights(model)["0.weight"])
                model.zero_grad()
        return weights(model)

    first, second = ranks(2, body)
    assert_same_bits(first, second)


@pytest.mark.parametrize("own", [True, False])
def test_an_inf_beside_a_spike_that_would_raise_is_skipped(real_ranks, own):
    """What overflows in one clip group makes a large norm in the other."""
    clip = {"first": Clip(max_norm=1.0), "rest": Clip(max_norm=1e-6, spike="raise")}

    def body(rank: int, attach: Any) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        with attach(model, clip=clip, clip_group=lambda name: "first" if name[0] == "0" else "rest") as gs:
            hook = next(model.parameters()).register_hook(lambda g: g * math.inf)
            before = weights(model)
            scaler.scale(loss_of(model, 0, rank)).backward()
            hook.remove()
            report = gs.step(optimizer, scale=SCALE) if own else gs.step(optimizer, scaler=scaler)
            assert (report.skipped, report.action, report.found_inf) == (True, "skip", True)
            assert_same_bits(weights(model), before)
            if not own:
                scaler.update()
                assert scaler.get_scale() == SCALE / 2

    real_ranks(2, body)
