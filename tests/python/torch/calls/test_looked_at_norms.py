"""`get_total_norm` for a look, and `clip_grad_norm_` after it, on a real daemon: the look leaves nothing behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from models import loss_of, mlp

import gradsync.torch as gst
from gradsync import Clip

CLIP = Clip.percentile(window=16, warmup=3, nonfinite="raise", spike="raise", spike_factor=1e6)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("GRADSYNC_MODE", raising=False)
    yield
    gst.close()


def init(address: str, job: str) -> Any:
    model = mlp()
    gst.init(model, address=address, job=job, rank=0, world_size=1, clip=CLIP)
    return model


def train(address: str, looks: int) -> list[tuple[float, float, str]]:
    model = init(address, f"looks-{looks}")
    found = []
    for step in range(8):
        model.zero_grad()
        loss_of(model, step, 0).backward()
        for _ in range(looks):
            gst.get_total_norm([p.grad for p in model.parameters()])
        gst.clip_grad_norm_(model.parameters(), 100.0)
        report = gst.last_report()
        assert report is not None
        found.append((report.norm, report.threshold, report.policy_digest))
    return found


@pytest.mark.parametrize("looks", [1, 2])
def test_a_norm_that_is_looked_at_before_the_clip_is_remembered_once(real_daemon: str, looks: int) -> None:
    expected = train(real_daemon, 0)
    assert train(real_daemon, looks) == expected
    assert [threshold == 100.0 for _, threshold, _ in expected] == [True] * 3 + [False] * 5


def test_nan_that_was_looked_at_raises_in_no_later_step(real_daemon: str) -> None:
    model = init(real_daemon, "nan")
    loss_of(model, 0, 0).backward()
    next(model.parameters()).grad.view(-1)[0] = math.nan
    assert gst.get_total_norm([p.grad for p in model.parameters()]).isnan()
    model.zero_grad()
    loss_of(model, 0, 0).backward()
    assert torch.isfinite(gst.clip_grad_norm_(model.parameters(), 1.0))
