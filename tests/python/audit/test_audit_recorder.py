"""The recorder of one rank: what it takes for a step, what it writes, and that scripts see torch's own behaviour."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradsync._audit._findings import RankFindings, Step, read_ranks
from gradsync._injected import _hooks
from gradsync.torch._audit import _recorder
from gradsync.torch._audit._model import Hints

clip, total, apply = nn.utils.clip_grad_norm_, nn.utils.get_total_norm, nn.utils.clip_grads_with_norm_


class Script:
    """Calls torch's functions through the recorder, as a wrapped script would."""

    def __init__(self, folder: Path, steps: int = 3, hints: Hints | None = None) -> None:
        self.folder = folder
        self.recorder = _recorder.Recorder(folder, steps, hints or Hints())

    def clip(self, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.around("clip", clip, args, kwargs)

    def total(self, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.around("total", total, args, kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.around("apply", apply, args, kwargs)

    def findings(self) -> RankFindings:
        self.recorder.close()
        return read_ranks(self.folder)[0]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Script]]:
    monkeypatch.setattr(_recorder, "_declaration", None)
    made: list[Script] = []
    gc.freeze()  # a look at all objects passes over those of tests that ran before in this process

    def script(*args: Any, **kwargs: Any) -> Script:
        made.append(Script(tmp_path, *args, **kwargs))
        return made[-1]

    try:
        yield script
        for one in made:
            one.recorder.close()
        _hooks.end()
        gc.collect()
    finally:
        gc.unfreeze()


def model(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))
    layers(torch.randn(2, widths[0])).square().sum().backward()
    return layers


def kinds(step: Step) -> list[tuple[str, tuple[int, ...] | None]]:
    return [(call.kind, call.tensors) for call in step.calls]


def test_the_last_step_of_an_audit_disturbs_no_other_hook_of_optimizers(make: Callable[..., Script]) -> None:
    script, net = make(steps=1), model(3, 2)
    script.clip(net.parameters(), 1.0)
    asked: list[torch.optim.Optimizer] = []
    later = register_optimizer_step_pre_hook(lambda optimizer, *_: asked.append(optimizer))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.step()
    later.remove()
    assert asked == [optimizer]
    assert len(script.findings().steps) == 1


def test_names_rows_and_norm(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 4, 2)
    exact = [float(p.grad.double().square().sum()) for p in net.parameters()]
    norm = script.clip(net.parameters(), 1.0)
    found = script.findings()
    assert [tensor.name for tensor in found.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert found.meshes == {"mesh": {"dp": 1}}
    (step,) = found.steps
    assert [row.power_sum for row in step.rows] == pytest.approx(exact, rel=1e-14)
    assert all(row.fingerprint for row in step.rows)
    assert kinds(step) == [("clip", None)]
    assert step.calls[0].norm == float(norm)
    assert step.calls[0].dtype == "float32"


def test_an_optimizer_ends_a_step_and_after_the_last_nothing_is_looked_at(make: Callable[..., Script]) -> None:
    script, net = make(steps=2), model(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        script.clip(net.parameters(), 1.0)
        script.total([p.grad for p in net.parameters()])  # logged after the clip: of no step
        optimizer.step()
    found = read_ranks(script.folder)[0]
    assert found.done
    assert [kinds(step) for step in found.steps] == [[("clip", None)]] * 2
    assert script.recorder._held is None


def test_without_an_optimizer_gradients_that_come_again_begin_a_step(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    for _ in range(2):
        norm = script.total([p.grad for p in net.parameters()])
        script.apply(net.parameters(), 1.0, norm)
    assert [kinds(step) for step in script.findings().steps] == [[("total", None), ("apply", None)]] * 2


def test_parts_with_one_norm_are_one_step(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 4, 2)
    parts = [list(net[0].parameters()), list(net[1].parameters())]
    norms = [script.total([p.grad for p in part]) for part in parts]
    norm = torch.stack(norms).norm()
    for part in parts:
        script.apply(part, 1.0, norm)
    (step,) = script.findings().steps
    assert kinds(step) == [("total", (0, 1)), ("total", (2, 3)), ("apply", (0, 1)), ("apply", (2, 3))]


def test_what_is_added_after_a_norm_is_measured_again(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    gradients = [p.grad for p in net.parameters()]
    script.total(gradients)
    for gradient in gradients:
        gradient.mul_(2)
    wanted = sum(float(g.double().square().sum()) for g in gradients)
    script.clip(net.parameters(), 1.0)
    (step,) = script.findings().steps
    assert kinds(step) == [("clip", None)]
    assert sum(row.power_sum for row in step.rows) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.training
@pytest.mark.parametrize("in_one", [True, False])
def test_gradients_that_are_made_between_two_products_are_another_step(
    make: Callable[..., Script], in_one: bool
) -> None:
    script, first, second = make(), model(3, 2), model(3, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    script.clip(first.parameters(), 1.0)
    second(torch.randn(2, 3)).square().sum().backward()
    wanted = float(second[0].weight.grad.double().square().sum())
    if in_one:
        script.clip(second.parameters(), 1.0)
    else:
        norm = script.total([p.grad for p in second.parameters()])
        script.apply(second.parameters(), 1.0, norm)
    optimizer.step()
    steps = script.findings().steps
    last = [("clip", (2, 3))] if in_one else [("total", (2, 3)), ("apply", (2, 3))]
    assert [kinds(step) for step in steps] == [[("clip", (0, 1))], last]
    assert steps[1].rows[2].power_sum == pytest.approx(wanted, rel=1e-12)


def test_norms_of_other_things_are_no_business_of_an_audit(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    script.total([p.detach() for p in net.parameters()])
    assert not list(script.folder.iterdir())
    script.clip(net.parameters(), 1.0)
    script.total([p.detach() for p in net.parameters()])
    (step,) = script.findings().steps
    assert kinds(step) == [("clip", None)]


def test_the_order_is_that_of_the_first_product(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    gradients = [p.grad for p in net.parameters()]
    script.total(gradients, float("inf"))
    script.clip(net.parameters(), 1.0)
    found = script.findings()
    assert found.p == 2.0
    assert [(call.kind, call.p) for call in found.steps[0].calls] == [("total", float("inf")), ("clip", 2.0)]


@pytest.mark.training
@pytest.mark.parametrize("wanted", [2.0, float("inf")])
def test_the_order_of_a_product_is_that_of_its_norm(make: Callable[..., Script], wanted: float) -> None:
    script, net = make(), model(3, 2)
    norms = {p: script.total([p.grad for p in net.parameters()], p) for p in (float("inf"), 2.0)}
    script.apply(net.parameters(), 1.0, norms[wanted])
    found = script.findings()
    assert found.p == wanted
    assert found.steps[0].calls[-1].p == wanted


def test_copies_of_gradients_are_attributed_by_what_is_multiplied(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    norm = script.total([p.grad.clone() for p in net.parameters()])
    script.apply(list(net.parameters()), 1.0, norm)
    (step,) = script.findings().steps
    assert kinds(step) == [("apply", None)]
    assert step.calls[0].norm == float(norm)


def test_parameters_without_a_module_are_named_by_position(make: Callable[..., Script]) -> None:
    script = make()
    loose = nn.Parameter(torch.ones(3))
    loose.grad = torch.ones(3)
    script.clip([loose], 1.0)
    found = script.findings()
    assert [tensor.name for tensor in found.tensors] == ["parameter.0"]
    assert "are in no module" in found.notes[0]


@pytest.mark.training
def test_leaf_tensors_are_parameters(make: Callable[..., Script]) -> None:
    script, leaf = make(), torch.ones(3, requires_grad=True)
    leaf.grad = torch.ones(3)
    script.clip([leaf], 1.0)
    found = script.findings()
    assert [tensor.name for tensor in found.tensors] == ["parameter.0"]
    assert found.steps[0].calls[0].strangers == 0


@pytest.mark.training
def test_what_optimizers_hold_is_declared_frozen_or_not(make: Callable[..., Script]) -> None:
    script, first, second = make(), model(3, 2), model(3, 4)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]
    first[0].bias.requires_grad_(False).grad = None
    script.clip(first.parameters(), 1.0)
    script.clip(second.parameters(), 1.0)
    found = script.findings()
    names = ["0.weight", "0.bias", "parts.1.0.weight", "parts.1.0.bias"]
    assert [tensor.name for tensor in found.tensors] == names
    assert kinds(found.steps[0]) == [("clip", (0, 1)), ("clip", (2, 3))]
    assert len(optimizers) == 2


@pytest.mark.training
def test_an_optimizer_that_cannot_be_measured_is_none_of_the_audits_business(make: Callable[..., Script]) -> None:
    script, net, other = make(), model(3, 2), nn.Embedding(4, 3, sparse=True)
    other(torch.arange(2)).sum().backward()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    script.clip(net.parameters(), 1.0)
    assert [tensor.name for tensor in script.findings().tensors] == ["0.weight", "0.bias"]
    assert optimizer.param_groups


@pytest.mark.training
def test_tensors_that_nobody_declared_are_counted(make: Callable[..., Script]) -> None:
    script, first, second = make(), model(3, 2), model(3, 4)
    script.clip(first.parameters(), 1.0)
    script.clip(second.parameters(), 1.0)
    script.clip([*first.parameters(), *second.parameters()], 1.0)
    calls = [call for step in script.findings().steps for call in step.calls]
    assert [(call.tensors, call.strangers) for call in calls] == [(None, 0), ((), 2), ((0, 1), 2)]


def test_the_outermost_module_gives_the_names(make: Callable[..., Script]) -> None:
    script = make()
    outer = nn.Module()
    outer.inner = model(3, 2)
    script.clip(outer.inner.parameters(), 1.0)
    assert [tensor.name for tensor in script.findings().tensors] == ["inner.0.weight", "inner.0.bias"]


def test_a_missing_gradient_is_a_row_of_none(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    net[0].bias.grad = None
    script.clip(net.parameters(), 1.0)
    (step,) = script.findings().steps
    assert step.rows[1] is None
    assert step.own[1] is None
    assert kinds(step) == [("clip", None)]


@pytest.mark.training
def test_results_and_errors_are_those_of_torch(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    before = [p.grad.clone() for p in net.parameters()]
    norm = script.clip(parameters=net.parameters(), max_norm=0.5, norm_type=1.0)
    ours = [p.grad.clone() for p in net.parameters()]
    for parameter, gradient in zip(net.parameters(), before, strict=True):
        parameter.grad.copy_(gradient)
    assert torch.equal(norm, clip(net.parameters(), 0.5, 1.0))
    assert all(torch.equal(p.grad, one) for p, one in zip(net.parameters(), ours, strict=True))
    net[0].bias.grad[0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        script.clip(net.parameters(), 1.0, error_if_nonfinite=True)
    found = script.findings()
    assert found.p == 1.0
    assert found.steps[1].calls[0].norm is None
    assert found.steps[1].rows[1].nan == 1


def test_an_empty_generator_still_warns_and_a_tensor_is_taken(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    with pytest.warns(UserWarning, match="empty generator"):
        script.clip((p for p in ()), 1.0)
    script.clip(net[0].weight, 1.0)


def test_what_cannot_be_measured_ends_the_audit_and_not_the_script(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    net[0].weight.grad = net[0].weight.grad.to_sparse()
    script.apply(net.parameters(), 1.0, torch.tensor(2.0), foreach=False)
    found = read_ranks(script.folder)[0]
    assert found.done
    assert "GradientRefused" in str(found.failed)
    assert float(script.total([torch.ones(4)])) == 2.0


def test_a_forked_child_is_not_looked_at(make: Callable[..., Script], monkeypatch: pytest.MonkeyPatch) -> None:
    script, net = make(), model(3, 2)
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    script.clip(net.parameters(), 1.0)
    monkeypatch.undo()
    assert not list(script.folder.iterdir())


def test_a_norm_that_the_script_tells(make: Callable[..., Script], monkeypatch: pytest.MonkeyPatch) -> None:
    from gradsync.torch._audit._model import declare
    from gradsync.torch._mesh_axes import job_meshes

    script, net = make(), model(3, 2)
    told = declare(dict(net.named_parameters()), job_meshes(None, 0, 1), Hints())
    monkeypatch.setattr(_recorder, "_declaration", told)
    script.recorder.observe(3.5)
    script.recorder.observe(torch.tensor(4.5, dtype=torch.bfloat16))
    found = script.findings()
    assert [(step.calls[0].norm, step.calls[0].dtype) for step in found.steps] == [(3.5, "float64"), (4.5, "bfloat16")]


def test_meshes_and_experts_that_the_caller_names(make: Callable[..., Script]) -> None:
    hints = Hints.of({"meshes": {"m": {"pp": 1, "ep": 1}}, "ep": [["*.weight", "slice", "ep"]], "tied": []})
    script, net = make(hints=hints), model(3, 2)
    script.clip(net.parameters(), 1.0)
    found = script.findings()
    assert found.meshes == {"m": {"pp": 1, "ep": 1}}
    assert {tensor.mesh for tensor in found.tensors} == {"m"}


def test_each_step_says_what_which_optimizer_stepped(make: Callable[..., Script]) -> None:
    script, net, later = make(), model(3, 4, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in net]
    for _ in range(2):
        net[1].bias.grad = None
        script.clip(net.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
    later.weight.grad = torch.ones(2, 2)
    torch.optim.Adam(later.parameters(), lr=0.1).step()
    script.clip(net.parameters(), 1.0)
    found = [[(one.kind, one.tensors, one.strangers) for one in step.stepped] for step in script.findings().steps]
    # The first optimizer closes a step, so what the others do is in the line after it.
    assert found == [[("SGD", (0, 1), 0)], [("SGD", (2,), 0), ("SGD", (0, 1), 0)], [("SGD", (2,), 0), ("Adam", (), 1)]]


@pytest.mark.training
@pytest.mark.parametrize(("when", "scale"), [("before", None), ("after", 8.0), ("never", None)])
def test_a_clip_before_the_scaler_divides_has_its_scale(
    make: Callable[..., Script], when: str, scale: float | None
) -> None:
    script, net = make(steps=2), model(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(2, 3)).square().sum()).backward()
        if when == "before":
            scaler.unscale_(optimizer)
        script.clip(net.parameters(), 0.5)
        if when == "never":
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    calls = [call for step in script.findings().steps for call in step.calls]
    assert [(call.scale, call.max_norm) for call in calls] == [(scale, 0.5)] * 2


def test_a_step_that_the_scaler_skips_is_not_taken_for_a_late_division(make: Callable[..., Script]) -> None:
    script, net = make(), model(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(2, 3)).square().sum()).backward()
        if step < 2:
            net[0].bias.grad[0] = float("inf")
        scaler.unscale_(optimizer)
        script.clip(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    steps = script.findings().steps
    assert [call.scale for step in steps for call in step.calls] == [None] * 3
    assert [step.rows[1].nonfinite for step in steps] == [1, 1, 0]


def test_a_norm_for_a_log_before_the_scaler_divides_is_no_clip(make: Callable[..., Script]) -> None:
    script, net = make(steps=2), model(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(2, 3)).square().sum()).backward()
        script.total([parameter.grad for parameter in net.parameters()])
        scaler.unscale_(optimizer)
        script.clip(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    calls = [call for step in script.findings().steps for call in step.calls]
    assert [(call.kind, call.scale) for call in calls] == [("clip", None)] * 2


def test_only_the_clip_before_the_scaler_divides_has_its_scale(make: Callable[..., Script]) -> None:
    script, net = make(steps=4), model(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(2, 3)).square().sum()).backward()
        script.clip(net.parameters(), 0.5)
        scaler.unscale_(optimizer)
        script.clip(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    calls = [call for step in script.findings().steps for call in step.calls]
    assert [call.scale for call in calls] == [8.0, None, 8.0, None]


def test_what_is_clipped_by_value_is_told_of_what_is_stepped(make: Callable[..., Script]) -> None:
    script, net = make(steps=2), model(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).square().sum().backward()
        script.clip([net[0].weight], 0.5)
        nn.utils.clip_grad_value_([net[0].bias], 0.1)
        optimizer.step()
    stepped = [one for step in script.findings().steps for one in step.stepped]
    assert [(one.tensors, one.by_value) for one in stepped] == [((0, 1), (1,))] * 2
