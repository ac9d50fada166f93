"""What a `GradScaler` is told about a step, beside torch's own recipe: unscale_, clip_grad_norm_, step, update.

One process; the hand-over of the gradients is faked, with torch's arithmetic in the daemon's place.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from models import assert_same_bits, loss_of, mlp, weights
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import SGD, AdamW

from gradsync import StepReport, StepTimings
from gradsync.errors import UsageError
from gradsync.torch._loss_scale import LossScale, loss_scale

STEPS, MAX_NORM = 50, 0.3
#: Steps with an inf in a gradient. Not the first: torch's fused SGD then goes on with a momentum never written.
INFS = (2, 7, 8, 30)


def report_of(*, found_inf: bool = False, spike: bool = False) -> StepReport:
    """As a daemon says it of a step with a scale."""
    return StepReport(
        step=0,
        epoch=1,
        attempt=0,
        next_attempt=1,
        norm=math.inf if found_inf else 1.0,
        threshold=MAX_NORM,
        coefficient=1.0,
        clipped=False,
        skipped=found_inf or spike,
        reason="made",
        found_inf=found_inf,
        groups=(),
        layers=(),
        nonfinite=(),
        divergence=(),
        absent=(),
        stable_buckets=(),
        counted_elements=0,
        collectives=0,
        data_path="made",
        policy_digest="",
        timings=StepTimings(0.0, 0.0, 0.0, 0.0, 0.0),
        action="skip" if found_inf or spike else "step",
    )


def hand_over(model: torch.nn.Module, factor: float) -> StepReport:
    """What a daemon does: measured, and multiplied once by coefficient / scale."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not all(bool(g.isfinite().all()) for g in gradients):
        return report_of(found_inf=True)
    norm = torch.nn.utils.get_total_norm(gradients) / factor
    torch._foreach_mul_(gradients, torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0) / factor)
    return report_of()


def held_by(scaler: Any, optimizers: Any) -> LossScale:
    held = loss_scale(scaler, None, optimizers)
    assert held is not None
    return held


def settled_by(held: LossScale, model: torch.nn.Module) -> StepReport:
    """As `gs.finish(scaler=…)`, which drops the gradients of a step that is skipped."""
    report = hand_over(model, held.factor)
    held.settle(report)
    if report.skipped:
        model.zero_grad()
    return report


def settle_and_step(held: LossScale, report: StepReport) -> None:
    held.settle(report)
    held.step(report)


def ours(scaler: GradScaler, optimizers: Sequence[Any], model: torch.nn.Module) -> None:
    held = held_by(scaler, optimizers)
    report = settled_by(held, model)
    held.step(report)
    assert report.skipped == report.found_inf


def ours_in_halves(scaler: GradScaler, optimizers: Sequence[Any], model: torch.nn.Module) -> None:
    held = held_by(scaler, optimizers)
    settled_by(held, model)
    for optimizer in optimizers:
        scaler.step(optimizer)


def torchs(scaler: GradScaler, optimizers: Sequence[Any], model: torch.nn.Module) -> None:
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    for optimizer in optimizers:
        scaler.step(optimizer)


def train(
    end: Callable[..., None], make: Callable[[Any], list[Any]], dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights at the end, and the scale of each step."""
    model = mlp(dtype=dtype)
    optimizers = make(list(model.parameters()))
    scaler = GradScaler("cpu", init_scale=2.0**12, growth_interval=4)
    scales = []
    for step in range(STEPS):
        scaler.scale(loss_of(model, step, 0, dtype)).backward()
        scales.append(scaler.get_scale())
        if step in INFS:
            for parameter in model.parameters():
                parameter.grad[0] = math.inf  # in all, for torch steps the optimizers that have none
        end(scaler, optimizers, model)
        scaler.update()
        model.zero_grad()
    return weights(model), scales


MAKERS = {
    "sgd": lambda p: [SGD(p, lr=0.1)],
    "momentum": lambda p: [SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)],
    "fused sgd": lambda p: [SGD(p, lr=0.1, momentum=0.9, fused=True)],
    "adamw": lambda p: [AdamW(p, lr=0.01)],
    "fused adamw": lambda p: [AdamW(p, lr=0.01, fused=True)],
    "two": lambda p: [SGD(p[:2], lr=0.1, momentum=0.9), AdamW(p[2:], lr=0.01)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("end", [ours, ours_in_halves])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_weights_and_scales_are_bit_equal_to_torchs_recipe(make, end, dtype):
    found, scales = train(end, make, dtype)
    expected, their_scales = train(torchs, make, dtype)
    assert_same_bits(found, expected)
    assert scales == their_scales
    assert len(set(scales)) > 4  # it grew and backed off


def began(growth_interval: int = 3, kind: type[GradScaler] = GradScaler, optimizers: int = 1):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(optimizers)]
    scaler = kind("cpu", init_scale=8.0, growth_interval=growth_interval, **_more(kind))
    scaler.scale(torch.ones(()))
    return scaler, [SGD([p], lr=1.0) for p in parameters], parameters


def _more(kind: type[GradScaler]) -> dict[str, Any]:
    return {"process_group": None} if kind is ShardedGradScaler else {}


def one_step(scaler: GradScaler, optimizers: list[Any], parameters: list[Any], report: StepReport) -> None:
    """By `gs.step(…, scaler=…)`, and update()."""
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    held = held_by(scaler, optimizers)
    held.settle(report)
    if report.skipped:
        for parameter in parameters:
            parameter.grad = None
    held.step(report)
    scaler.update()


@pytest.mark.parametrize("kind", [GradScaler, ShardedGradScaler])
@pytest.mark.parametrize("interval", [1, 2, 3])
@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_skipped_spike_leaves_the_scale_and_its_growth_alone(kind, interval, optimizers):
    with_spikes, without = began(interval, kind, optimizers), began(interval, kind, optimizers)
    for step in range(4 * interval):
        for _ in range(1 + step % 3):
            before = with_spikes[0].state_dict()
            one_step(*with_spikes, report_of(spike=True))
            assert with_spikes[0].state_dict() == before
        one_step(*with_spikes, report_of())
        one_step(*without, report_of())
        assert with_spikes[0].state_dict() == without[0].state_dict()
    assert with_spikes[0].get_scale() == 8.0 * 2**4
    assert all(torch.equal(a, b) for a, b in zip(with_spikes[2], without[2], strict=True))


def test_a_spike_moves_no_weight_and_an_inf_after_it_halves_the_scale():
    scaler, optimizers, parameters = began()
    one_step(scaler, optimizers, parameters, report_of(spike=True))
    assert parameters[0].tolist() == [1.0, 1.0]
    one_step(scaler, optimizers, parameters, report_of(found_inf=True))
    assert (parameters[0].tolist(), scaler.get_scale()) == ([1.0, 1.0], 4.0)


def test_a_norm_that_overflows_is_no_spike():
    """Each gradient is finite, and the scale has to fall all the same, or every step would be skipped."""
    scaler, optimizers, parameters = began()
    one_step(scaler, optimizers, parameters, replace(report_of(found_inf=True), found_inf=False))
    assert (parameters[0].tolist(), scaler.get_scale()) == ([1.0, 1.0], 4.0)


def test_a_step_that_a_spike_skipped_is_not_taken_by_hand():
    scaler, optimizers, _ = began()
    held = held_by(scaler, optimizers)
    settle_and_step(held, report_of(spike=True))
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizers[0])


def test_an_optimizer_that_the_caller_steps_after_a_spike_finds_nothing_to_do():
    scaler, optimizers, parameters = began()
    before = scaler.state_dict()
    held_by(scaler, optimizers).settle(report_of(spike=True))  # and finish() drops the gradients
    scaler.step(optimizers[0])
    scaler.update()
    assert (parameters[0].tolist(), scaler.state_dict()) == ([1.0, 1.0], before)


def test_no_optimizer_steps_where_one_has_an_inf():
    scaler, optimizers, parameters = began(optimizers=2)
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    held = held_by(scaler, optimizers)
    settle_and_step(held, report_of(found_inf=True))
    scaler.update()
    assert [p.tolist() for p in parameters] == [[1.0, 1.0]] * 2
    assert scaler.get_scale() == 4.0


def test_two_spikes_in_one_iteration_are_taken_back_once():
    scaler, (first, second), _ = began(optimizers=2)
    before = scaler.state_dict()
    for optimizer in (first, second):  # as with two modules, each attached by itself, and one scaler
        held = held_by(scaler, optimizer)
        settle_and_step(held, report_of(spike=True))
    scaler.update()
    assert scaler.state_dict() == before


@pytest.mark.parametrize("updates", [True, False])
def test_training_goes_on_after_a_step_that_raised(updates):
    scaler, optimizers, parameters = began()
    held_by(scaler, optimizers).settle_raised()
    if updates:
        scaler.update()
    before = scaler.state_dict()
    one_step(scaler, optimizers, parameters, report_of(spike=True))
    assert scaler.state_dict() == before
    one_step(scaler, optimizers, parameters, report_of())
    assert (parameters[0].tolist(), scaler.get_scale()) == ([0.0, 0.0], 8.0)


def test_without_a_scaler_or_with_one_that_is_off_there_is_none():
    optimizer = began()[1][0]
    assert loss_scale(None, None, optimizer) is None
    assert loss_scale(None, 8.0, None) is None
    assert loss_scale(GradScaler("cpu", enabled=False), None, optimizer) is None


def unscaled(scaler: GradScaler, optimizers: list[Any]) -> None:
    optimizers[0].param_groups[0]["params"][0].grad = torch.ones(2)
    scaler.unscale_(optimizers[0])


def stepped(scaler: GradScaler, optimizers: list[Any]) -> None:
    held = held_by(scaler, optimizers)
    settle_and_step(held, report_of())


def settled(scaler: GradScaler, optimizers: list[Any]) -> None:
    held_by(scaler, optimizers).settle(report_of())


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (unscaled, r"optimizers\[0\] \(SGD\): double unscale"),
        (stepped, r"optimizers\[0\] \(SGD\).*update\(\) was forgotten"),
        (settled, r"optimizers\[0\] \(SGD\).*update\(\) was forgotten"),
        (lambda scaler, _: scaler.update(0.0), r"scaler.get_scale\(\) is 0.0"),
        (lambda scaler, _: scaler.update(math.inf), r"scaler.get_scale\(\) is inf"),
    ],
)
def test_a_scaler_that_is_not_at_the_beginning_of_a_step_is_refused(before, message):
    scaler, optimizers, _ = began()
    before(scaler, optimizers)
    stage = {key: dict(state) for key, state in scaler._per_optimizer_states.items()}
    with pytest.raises(UsageError, match=message):
        loss_scale(scaler, None, optimizers)
    assert stage == scaler._per_optimizer_states


def test_a_scaler_that_scaled_nothing_is_refused():
    _, optimizers, _ = began()
    with pytest.raises(UsageError, match="scaled nothing yet"):
        loss_scale(GradScaler("cpu"), None, optimizers)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scaler": 1024.0}, r"scaler=1024.0: give a torch.amp.GradScaler"),
        ({"scale": 2.0}, r"scale=2.0 beside scaler="),
        ({"optimizers": None}, r"optimizers=None with a scaler"),
        ({"optimizers": []}, r"optimizers=\[\] with a scaler"),
        ({"optimizers": ["sgd"]}, r"optimizers\[0\]='sgd': give a torch.optim.Optimizer"),
    ],
)
def test_wrong_arguments_are_refused(given, message):
    scaler, optimizers, _ = began()
    with pytest.raises(UsageError, match=message):
        loss_scale(**{"scaler": scaler, "scale": None, "optimizers": optimizers, **given})


def test_an_optimizer_given_twice_is_refused():
    scaler, (optimizer,), _ = began()
    with pytest.raises(UsageError, match=r"optimizers\[1\] is there twice"):
        loss_scale(scaler, None, [optimizer, optimizer])


def test_looking_changes_nothing_in_the_scaler():
    scaler, optimizers, _ = began()
    held_by(scaler, optimizers)
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 8.0  # refused by torch in the middle of an iteration
