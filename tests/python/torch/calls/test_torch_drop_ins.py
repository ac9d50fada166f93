"""torch's functions over a fake daemon of one rank: what is sent, returned, multiplied and refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from drop_ins import Norms, backward, copies, init, net
from fake_daemon import FakeDaemon
from torch import nn

import gradsync.torch as gst
from gradsync.errors import NotAttached, UsageError
from gradsync.torch import GradientRefused, ModeNotAvailable, ParameterChanged


@pytest.mark.parametrize("p", [1.0, 2.0, 3, math.inf])
@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1e9, math.inf])
def test_clip_grad_norm_is_torchs(daemon: FakeDaemon, norms: Norms, p: float, max_norm: float) -> None:
    ours, theirs = net(), net()
    init(daemon, ours)
    for _ in range(2):
        for model in (ours, theirs):
            model.zero_grad()
            backward(model)
        got = gst.clip_grad_norm_(ours.parameters(), max_norm, p, foreach=True)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, p)
        assert (got.dtype, got.shape, got.device) == (expected.dtype, expected.shape, expected.device)
        torch.testing.assert_close(got, expected)
        for a, b in zip(copies(ours), copies(theirs), strict=True):
            torch.testing.assert_close(a, b)
    assert gst.last_report().norm == got.item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_multiplied_once(daemon: FakeDaemon, norms: Norms, dtype: torch.dtype) -> None:
    model = net(dtype)
    init(daemon, model)
    backward(model, 1.0)
    before = copies(model)
    norm = gst.clip_grad_norm_(model.parameters(), 0.25)
    coefficient = gst.last_report().coefficient
    assert coefficient < 1
    assert norm.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for a, b in zip(before, copies(model), strict=True):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert torch.equal((a.to(wide) * torch.tensor(coefficient, dtype=wide)).to(dtype), b)


def test_halves(daemon: FakeDaemon, norms: Norms) -> None:
    ours, theirs = net(), net()
    init(daemon, ours)
    for model in (ours, theirs):
        backward(model)
    before = copies(ours)
    norm = gst.get_total_norm([p.grad for p in ours.parameters()])
    expected = nn.utils.get_total_norm([p.grad for p in theirs.parameters()])
    torch.testing.assert_close(norm, expected)
    assert all(map(torch.equal, before, copies(ours)))
    gst.clip_grads_with_norm_(ours.parameters(), 0.5, norm)
    nn.utils.clip_grads_with_norm_(theirs.parameters(), 0.5, expected)
    for a, b in zip(copies(ours), copies(theirs), strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(UsageError, match="get_total_norm"):
        gst.clip_grads_with_norm_(ours.parameters(), 0.5, norm)


def test_the_norm_has_the_type_of_the_job_whatever_this_rank_holds(daemon: FakeDaemon, norms: Norms) -> None:
    daemon.norm_dtype = "float64"  # another stage holds float64
    model = net()
    init(daemon, model)
    backward(model, 1.0)
    assert gst.clip_grad_norm_(model.parameters(), 1.0).dtype is torch.float64


def test_a_norm_that_is_only_looked_at_does_not_hold_up_the_next_step(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    backward(model)
    gst.get_total_norm([p.grad for p in model.parameters()])
    gst.get_total_norm([p.grad for p in model.parameters()])
    gst.clip_grad_norm_(model.parameters(), 1.0)
    assert [c["step"] for c in daemon.of("norm.compute")] == [0, 1]
    assert [c["abandon"] for c in daemon.of("clip.apply")] == [True, True]
    assert all("max_norm" not in c for c in daemon.of("clip.apply"))
    assert [c["step"] for c in daemon.of("step.finish")] == [2]


def test_a_norm_from_elsewhere_is_refused(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    backward(model)
    gst.get_total_norm([p.grad for p in model.parameters()])
    with pytest.raises(UsageError, match="get_total_norm"):
        gst.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(3.0))


def test_gradients_that_are_none_change_no_call(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    gst.clip_grad_norm_(model.parameters(), 1.0)
    assert [row[0] for row in norms.rows()] == [0] * 4
    backward(model)
    model[0].weight.grad = None
    gst.clip_grad_norm_((p for p in model.parameters() if p.grad is not None), 1.0)
    assert [bool(row[0]) for row in norms.rows()] == [False, True, True, True]
    assert len(daemon.of("step.finish")) == 2
    assert len(daemon.of("gradients.declare")) == 1


@pytest.mark.parametrize("parts", [[], [nn.ReLU()]])
def test_a_rank_without_parameters_takes_part(daemon: FakeDaemon, norms: Norms, parts: Any) -> None:
    init(daemon, parts)
    assert gst.clip_grad_norm_([], 1.0).item() == 0.0
    assert gst.get_total_norm([]).item() == 0.0
    assert len(daemon.of("step.finish")) == 1


def test_fingerprints_are_taken_where_they_are_due(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    backward(model)
    for due in (True, False):
        gst.clip_grad_norm_(model.parameters(), 1e9)
        assert [bool(row[7]) for row in norms.rows()] == [due] * 4


def test_error_if_nonfinite_leaves_gradients_alone(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    backward(model)
    model[0].weight.grad[0, 0] = math.nan
    before = copies(model)
    with pytest.raises(RuntimeError, match="non-finite"):
        gst.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    with pytest.raises(RuntimeError, match="non-finite"):
        gst.get_total_norm([p.grad for p in model.parameters()], error_if_nonfinite=True)
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, copies(model), strict=True))
    assert math.isnan(gst.clip_grad_norm_(model.parameters(), 1.0))
    assert all(torch.isnan(gradient).all() for gradient in copies(model))


def test_other_parameters_than_those_of_init_are_refused(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    backward(model)
    with pytest.raises(UsageError, match=r"2 parameters.*'2\.weight', '2\.bias'"):
        gst.clip_grad_norm_(model[0].parameters(), 1.0)
    stranger = nn.Parameter(torch.ones(2))
    with pytest.raises(ParameterChanged):
        gst.clip_grad_norm_([*model.parameters(), stranger], 1.0)
    with pytest.raises(UsageError, match="left out"):
        gst.get_total_norm([model[0].weight.grad])
    assert not daemon.of("step.finish")


def test_a_model_that_changed_is_noticed_whatever_was_right_before(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    init(daemon, model)
    for _ in range(3):
        model.zero_grad()
        backward(model)
        gst.clip_grad_norm_(model.parameters(), 1.0)
    begun = model.parameters()
    next(begun)
    with pytest.raises(UsageError, match=r"1 parameters.*'0\.weight'"):
        gst.clip_grad_norm_(begun, 1.0)
    with pytest.raises(UsageError, match="4 parameters"):
        gst.clip_grad_norm_(model.parameters(recurse=False), 1.0)
    model[2].bias = nn.Parameter(torch.ones(3))
    with pytest.raises(ParameterChanged):
        gst.clip_grad_norm_(model.parameters(), 1.0)
    assert len(daemon.of("step.finish")) == 3


@pytest.mark.parametrize("again", [False, True])
def test_an_exchanged_table_of_parameters_is_noticed(daemon: FakeDaemon, norms: Norms, again: bool) -> None:
    model = net()
    init(daemon, model)
    for _ in range(2):
        backward(model)
        gst.clip_grad_norm_(model.parameters(), 1.0)
        if again:
            model.append(nn.ReLU())  # what changes no parameter is looked at once
    model[2]._parameters = {**model[2]._parameters, "bias": nn.Parameter(torch.ones(3))}
    with pytest.raises(ParameterChanged):
        gst.clip_grad_norm_(model.parameters(), 1.0)


def test_frozen_parameters_may_be_given(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    model[0].weight.requires_grad = False
    init(daemon, model)
    backward(model)
    gst.clip_grad_norm_(model.parameters(), 1.0)
    gst.clip_grad_norm_(model.parameters(), 1.0)
    model[0].weight.requires_grad = True
    with pytest.raises(ParameterChanged):
        gst.clip_grad_norm_(model.parameters(), 1.0)


def test_sparse_gradients_are_refused_by_name(daemon: FakeDaemon, norms: Norms) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    init(daemon, model)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(GradientRefused, match=r"'weight'.*sparse"):
        gst.clip_grad_norm_(model.parameters(), 1.0)


def test_without_init_nothing_is_attached() -> None:
    gst.close()
    for call in (
        lambda: gst.clip_grad_norm_([], 1.0),
        lambda: gst.get_total_norm([]),
        lambda: gst.clip_grads_with_norm_([], 1.0, torch.tensor(1.0)),
    ):
        with pytest.raises(NotAttached, match="init"):
            call()
    assert gst.last_report() is None


def test_off_is_torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNC_MODE", "off")
    model, theirs = net(), net()
    gst.init(model)
    for one in (model, theirs):
        backward(one)
    norm = gst.get_total_norm([p.grad for p in model.parameters()])
    gst.clip_grads_with_norm_(model.parameters(), 0.5, norm)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(theirs.parameters(), 0.5))
    assert all(map(torch.equal, copies(model), copies(theirs)))
    assert gst.clip_grad_norm_(model.parameters(), 0.1) <= 0.5001
    assert gst.last_report() is None
    gst.close()


@pytest.mark.parametrize("mode", ["sync", "on"])
def test_modes_that_init_has_not(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNC_MODE", mode)
    with pytest.raises(UsageError if mode == "on" else ModeNotAvailable, match=mode):
        gst.init(net())
    with pytest.raises(UsageError, match=mode):
        gst.init(net(), mode=mode)


def test_init_again_leaves_the_job_before(daemon: FakeDaemon, norms: Norms) -> None:
    model = net()
    first = init(daemon, model)
    second = init(daemon, model)
    assert len(daemon.of("job.detach")) == 1
    backward(model)
    with pytest.raises(UsageError):
        first.clip_grad_norm_(model.parameters(), 1.0)
    assert second.clip_grad_norm_(model.parameters(), 1.0) > 0


def test_a_declaration_can_be_saved(daemon: FakeDaemon, norms: Norms, tmp_path: Path) -> None:
    init(daemon, net()).save_declaration(tmp_path / "d.jsonl")
    assert len((tmp_path / "d.jsonl").read_text().splitlines()) == 2


def test_dtensor_gradients_are_checked_again_when_they_change(daemon: FakeDaemon, norms: Norms) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        model = nn.ParameterDict({"w": nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Replicate()]))})
        init(daemon, model, mesh=mesh)
        parameter = model["w"]
        good = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
        for _ in range(3):
            parameter.grad = good
            gst.clip_grad_norm_(model.parameters(), 1e9)
        assert len(daemon.of("step.finish")) == 3
        parameter.grad = DTensor.from_local(torch.ones(2), mesh, [Partial()])
        with pytest.raises(GradientRefused, match=r"'w'.*is not reduced"):
            gst.clip_grad_norm_(model.parameters(), 1.0)
        parameter.grad = None
        gst.clip_grad_norm_(model.parameters(), 1.0)
        assert [row[0] for row in norms.rows()] == [0]
        assert len(daemon.of("step.finish")) == 4
    finally:
        dist.destroy_process_group()
