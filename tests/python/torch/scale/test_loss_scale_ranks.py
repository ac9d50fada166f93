"""`gs.step(…, scaler=…)` and `gs.finish(scaler=…)` over ranks, beside torch's recipe on the data of all of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from models import assert_same_bits, loss_of, mlp, weights
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import SGD, AdamW

import gradsync
import gradsync.torch as gst
from gradsync import Clip
from gradsync.errors import ClipRaised, StepMismatch, UsageError

STEPS, MAX_NORM = 50, 0.3
INFS = (2, 7, 8, 30)  #: steps of which rank 1 has a loss that is not finite
F32 = torch.float32


def new_scaler(scale: float = 2.0**10, kind: type[GradScaler] = GradScaler, interval: int = 4) -> GradScaler:
    return kind("cpu", init_scale=scale, growth_interval=interval)


def backward(scaler: GradScaler, model: Any, step: int, part: int, dtype: torch.dtype, infs=INFS) -> None:
    loss = scaler.scale(loss_of(model, step, part, dtype))
    (loss * math.inf if step in infs and part == 1 else loss).backward()


class Checking(GradScaler):
    """Torch's, but `unscale_` only looks, so that gradients can be multiplied once, and fp16 ones are allowed."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, torch.ones_like(inv_scale), found_inf, True)


def reduced(parts: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The mean of two ranks, rounded once."""
    return [((a.float() + b.float()) / 2).to(a.dtype) for a, b in zip(*parts, strict=True)]


def train_alone(make: Any, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], list[float]]:
    """By torch's recipe; for bf16 and fp16 with one rounding in the place of two."""
    model = mlp(dtype=dtype)
    optimizers = make(list(model.parameters()))
    scaler = new_scaler(kind=GradScaler if dtype is F32 else Checking)
    scales = []
    for step in range(STEPS):
        parts = []
        for part in range(2):
            backward(scaler, model, step, part, dtype)
            parts.append([p.grad for p in model.parameters()])
            model.zero_grad()
        for parameter, gradient in zip(model.parameters(), reduced(parts), strict=True):
            parameter.grad = gradient
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        gradients = [p.grad for p in model.parameters()]
        factor = 1.0 if dtype is F32 else scaler.get_scale()
        norm = (torch.cat([g.double().reshape(-1) for g in gradients]).norm() / factor).float()
        coefficient = torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.copy_((gradient.float() * (coefficient / factor)).to(dtype))
        for optimizer in optimizers:
            scaler.step(optimizer)
        scales.append(scaler.get_scale())
        scaler.update()
        model.zero_grad()
    return weights(model), scales


def sgd(parameters: list[Any]) -> list[Any]:
    return [SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)]


def adamw(parameters: list[Any]) -> list[Any]:
    return [AdamW(parameters, lr=0.01)]


def fused(parameters: list[Any]) -> list[Any]:
    return [AdamW(parameters, lr=0.01, fused=True)]


def two(parameters: list[Any]) -> list[Any]:
    return [SGD(parameters[:2], lr=0.1, momentum=0.9), AdamW(parameters[2:], lr=0.01)]


def in_one(gs: Any, optimizers: list[Any], scaler: GradScaler) -> gradsync.StepReport:
    return gs.step(optimizers, scaler=scaler)


def in_halves(gs: Any, optimizers: list[Any], scaler: GradScaler) -> gradsync.StepReport:
    report = gs.finish(scaler=scaler, optimizers=optimizers)
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    return report


@pytest.mark.parametrize("end", [in_one, in_halves])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [sgd, adamw, fused, two])
def test_weights_and_scales_are_bit_equal_to_torchs_recipe(real_ranks, make, dtype, end):
    def body(rank: int, attach: Any) -> tuple[dict[str, torch.Tensor], list[float], list[int]]:
        model = mlp(dtype=dtype)
        optimizers = make(list(model.parameters()))
        scaler = new_scaler()
        scales, skipped = [], []
        with attach(model, clip=Clip(max_norm=MAX_NORM), formula="torch") as gs:
            for step in range(STEPS):
                backward(scaler, model, step, rank, dtype)
                scales.append(scaler.get_scale())
                if end(gs, optimizers, scaler).skipped:
                    skipped.append(step)
                scaler.update()
        return weights(model), scales, skipped

    expected, their_scales = train_alone(make, dtype)
    for found, scales, skipped in real_ranks(2, body):
        assert_same_bits(found, expected)
        assert scales == their_scales
        assert set(INFS) <= set(skipped)
        assert len(set(scales)) > 4


def one_inf(attach: Any, rank: int, clip: Clip, end: Any) -> tuple[Any, float, bool]:
    """Three steps, the second not finite on rank 1: its report, the scale after it, and whether it moved weights."""
    model = mlp()
    optimizers = sgd(list(model.parameters()))
    scaler = new_scaler()
    with attach(model, clip=clip) as gs:
        for step in range(3):
            backward(scaler, model, step, rank, torch.float64, infs=(1,))
            before = weights(model)
            report = end(gs, optimizers, scaler)
            scaler.update()
            moved = any(not torch.equal(before[name], after) for name, after in weights(model).items())
            if step == 1:
                found = report, scaler.get_scale(), moved
            else:
                assert moved
                assert not report.skipped
    return found


@pytest.mark.parametrize("end", [in_one, in_halves])
@pytest.mark.parametrize("nonfinite", ["propagate", "skip", "zero", "raise"])
def test_an_inf_on_one_rank_skips_on_all_whatever_was_declared(ranks, nonfinite, end):
    clip = Clip(max_norm=1.0, nonfinite=nonfinite)
    for report, scale, moved in ranks(2, lambda rank, attach: one_inf(attach, rank, clip, end)):
        assert (report.skipped, report.action, report.found_inf) == (True, "skip", True)
        assert (scale, moved) == (2.0**9, False)


def spiked(gs: Any, model: Any, scaler: GradScaler, optimizers: list[Any], rank: int, step: int, spike: bool) -> Any:
    loss = scaler.scale(loss_of(model, step, rank))
    (loss * 1e6 if spike else loss).backward()
    return gs.step(optimizers, scaler=scaler)


def test_spikes_that_are_skipped_leave_the_scale_alone(real_ranks):
    def body(rank: int, attach: Any) -> None:
        model = mlp()
        optimizers = sgd(list(model.parameters()))
        scaler = new_scaler(interval=3)
        with attach(model, clip=Clip(max_norm=100.0, spike="skip")) as gs:
            for step in range(6):
                before, state = weights(model), scaler.state_dict()
                report = spiked(gs, model, scaler, optimizers, rank, step, spike=step in (1, 2))
                assert (report.skipped, report.found_inf) == (step in (1, 2), False)
                scaler.update()
                if report.skipped:
                    assert_same_bits(before, weights(model))
                    assert scaler.state_dict() == state
                assert scaler.get_scale() == (2.0**10 if step < 4 else 2.0**11)  # after three steps that were taken

    real_ranks(2, body)


@pytest.mark.parametrize("updates", [True, False])
def test_training_goes_on_after_a_spike_that_raised(real_ranks, updates):
    def body(rank: int, attach: Any) -> None:
        model = mlp()
        optimizers = sgd(list(model.parameters()))
        scaler = new_scaler()
        with attach(model, clip=Clip(max_norm=100.0, spike="raise")) as gs:
            before = weights(model)
            with pytest.raises(ClipRaised):
                spiked(gs, model, scaler, optimizers, rank, 0, spike=True)
            assert_same_bits(before, weights(model))
            if updates:
                scaler.update()
            report = spiked(gs, model, scaler, optimizers, rank, 1, spike=False)
            scaler.update()
            assert (report.skipped, scaler.get_scale()) == (False, 2.0**10)
            assert not torch.equal(before["0.weight"], weights(model)["0.weight"])

    real_ranks(2, body)


def test_no_policy_remembers_a_step_that_the_scaler_skips_also_at_scale_1(real_ranks):
    def body(rank: int, attach: Any) -> None:
        model = mlp()
        optimizers = sgd(list(model.parameters()))
        scaler = new_scaler(1.0)
        clip = {"first": Clip.percentile(warmup=2), "rest": Clip.percentile(warmup=2)}
        with attach(model, clip=clip, clip_group=lambda name: "first" if name[0] == "0" else "rest") as gs:
            digests = []
            for step in range(3):
                hook = next(model.parameters()).register_hook(lambda g, n=step: g / 0 if n == 1 else g)  # of "first"
                scaler.scale(loss_of(model, step, rank)).backward()
                hook.remove()
                report = gs.step(optimizers, scaler=scaler)
                scaler.update(1.0)
                assert math.isfinite({group.name: group.norm for group in report.groups}["rest"])
                digests.append(report.policy_digest)
            assert digests[0] == digests[1] != digests[2]

    real_ranks(2, body)


def test_ranks_with_different_scales_are_told_so(real_ranks):
    def body(rank: int, attach: Any) -> None:
        model = mlp()
        optimizers = sgd(list(model.parameters()))
        scaler = new_scaler(2.0 ** (10 + rank))
        gs = attach(model)
        scaler.scale(loss_of(model, 0, rank)).backward()
        with pytest.raises(StepMismatch, match=r"scale"):
            gs.step(optimizers, scaler=scaler)

    real_ranks(2, body)


def test_a_refused_scaler_leaves_the_step_open(ranks):
    def body(rank: int, attach: Any) -> int:
        model = mlp()
        (optimizer,) = sgd(list(model.parameters()))
        scaler = new_scaler()
        with attach(model) as gs:
            scaler.scale(loss_of(model, 0, rank)).backward()
            with pytest.raises(UsageError, match="beside scaler="):
                gs.step(optimizer, scaler=scaler, scale=2.0)
            with pytest.raises(UsageError, match="optimizers=None"):
                gs.finish(scaler=scaler)
            return gs.step(optimizer).step

    assert ranks(2, body) == [0, 0]


def test_unscaling_before_the_step_is_refused_where_it_is_called(ranks):
    """Torch divides without a trace, in memory that others may be reading: weights went wrong without a word."""

    def body(rank: int, attach: Any) -> tuple[dict[str, torch.Tensor], float]:
        model = mlp()
        (optimizer,) = sgd(list(model.parameters()))
        elsewhere = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        scaler = new_scaler()
        with attach(model) as gs:
            for step in range(4):
                backward(scaler, model, step, rank, torch.float64, infs=())
                with pytest.raises(UsageError, match=r"would divide this rank's own.*scaler="):
                    scaler.unscale_(optimizer)
                with pytest.raises(UsageError, match="would divide this rank's own"):
                    scaler.step(optimizer)
                elsewhere.param_groups[0]["params"][0].grad = torch.ones(1)
                scaler.unscale_(elsewhere)  # is nobody's business
                report = gs.step(optimizer, scaler=scaler)
                scaler.update()
        backward(scaler, model, 4, rank, torch.float64, infs=())
        scaler.unscale_(optimizer)  # a plain module again
        return weights(model), report.norm

    (first, norm), (second, _) = ranks(2, body)
    assert_same_bits(first, second)
    assert norm < 100


def test_unscaling_after_finish_is_refused_where_the_scale_was_in_the_norm_or_is_out_already(ranks):
    def body(rank: int, attach: Any) -> None:
        model = mlp()
        optimizers = two(list(model.parameters()))
        scaler = new_scaler()
        with attach(model, clip=Clip(max_norm=MAX_NORM)) as gs:
            backward(scaler, model, 0, rank, torch.float64, infs=())
            gs.finish()
            with pytest.raises(UsageError, match="measured, to be clipped, with the scale"):
                scaler.step(optimizers[0])
            model.zero_grad()
            backward(scaler, model, 1, rank, torch.float64, infs=())
            gs.finish(scaler=scaler, optimizers=optimizers[0])
            scaler.step(optimizers[0])
            with pytest.raises(UsageError, match=r"divided by a scale already.*all of its optimizers"):
                scaler.step(optimizers[1])
            model.zero_grad()
            scaler.update()
            backward(scaler, model, 2, rank, torch.float64, infs=())
            assert gs.finish(max_norm=math.inf).threshold == math.inf
            for optimizer in optimizers:  # only measured
                scaler.step(optimizer)

    ranks(2, body)


@pytest.mark.parametrize("kind", [GradScaler, ShardedGradScaler])
@pytest.mark.parametrize("fused", [False, True])
def test_every_scaler_and_optimizer_is_noticed(real_ranks, kind, fused):
    """FSDP's scaler has an `unscale_` of its own; a fused optimizer is not unscaled, it divides in its step."""

    def body(rank: int, attach: Any) -> None:
        model = mlp()
        first, *others = model.parameters()
        optimizers = [SGD([first], lr=0.1, fused=fused), SGD(others, lr=0.1, fused=fused)]
        scaler = new_scaler(kind=kind)
        clip = Clip.percentile(None, percentile=50, window=8, warmup=4)  # has no threshold yet
        with attach(model, clip=clip) as gs:
            backward(scaler, model, 0, rank, torch.float64, infs=())
            with pytest.raises(UsageError, match="this rank's own gradients"):
                scaler.step(optimizers[0])
            gs.finish()
            with pytest.raises(UsageError, match="with the scale of the loss"):
                scaler.step(optimizers[0])
            scaler.update(2.0**10)
            model.zero_grad()
            backward(scaler, model, 1, rank, torch.float64, infs=())
            gs.step(optimizers[0], scaler=scaler, zero_grad=False)
            with pytest.raises(UsageError, match="divided by a scale already"):
                scaler.step(optimizers[1])

    real_ranks(2, body)


def test_a_scaler_that_is_off_counts_as_none(ranks):
    def body(rank: int, attach: Any) -> dict[str, torch.Tensor]:
        model = mlp()
        (optimizer,) = sgd(list(model.parameters()))
        scaler = GradScaler("cpu", enabled=False) if rank else None
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            assert not gs.step(optimizer, scaler=scaler).skipped
        return weights(model)

    first, second = ranks(2, body)
    assert_same_bits(first, second)


@pytest.mark.parametrize("end", [in_one, in_halves])
def test_mode_off_is_torchs_scaler(monkeypatch, end):
    monkeypatch.setenv("GRADSYNC_MODE", "off")
    trained = []
    for ours in (True, False):
        model = mlp()
        optimizers = two(list(model.parameters()))
        scaler = new_scaler()
        gs = gst.attach(model, clip=Clip(max_norm=1e-6), rank=0, world_size=1)
        for step in range(5):
            backward(scaler, model, step, 1, torch.float64)
            if ours:
                report = end(gs, optimizers, scaler)
                assert (report.data_path, report.found_inf) == ("off", step in INFS and end is in_one)
                assert report.skipped == report.found_inf
            else:
                for optimizer in optimizers:
                    scaler.step(optimizer)
                model.zero_grad()
            scaler.update()
        trained.append((weights(model), scaler.state_dict()))
    assert_same_bits(trained[0][0], trained[1][0])
    assert trained[0][1] == trained[1][1]


def test_mode_off_says_that_a_step_was_skipped_when_no_optimizer_stepped(monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "off")
    model = mlp()
    optimizers = two(list(model.parameters()))
    scaler = new_scaler()
    gs = gst.attach(model, rank=0, world_size=1)
    backward(scaler, model, 0, 0, torch.float64)
    next(model.parameters()).grad.fill_(math.inf)
    report = gs.step(optimizers, scaler=scaler)
    assert (report.skipped, report.found_inf, report.action) == (False, True, "step")
    assert "1 of 2 optimizers" in report.reason
    with pytest.raises(UsageError, match="scaler='amp'"):
        gs.step(optimizers, scaler="amp")
