"""What becomes of a step whose norm is not finite: `gs.step`, `gs.finish` and torch's functions obey the report."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from drop_ins import Norms, backward, copies, init, net
from models import assert_same_bits, loss_of, mlp, weights

import gradsync
import gradsync.torch as gst
from gradsync import Clip
from gradsync.errors import ClipRaised, UsageError


def spoiled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.index_fill(0, torch.tensor([0]), math.nan)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


def train(rank: int, attach: Any, clip: Clip, obey: Any) -> tuple[list[dict[str, torch.Tensor]], Any, Any]:
    """Three steps, the second with NaN in a gradient of rank 1: weights after each, and what `obey` made of it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = [weights(model)]
    with attach(model, clip=clip) as gs:
        for step in range(3):
            hook = next(model.parameters()).register_hook(spoiled if (step, rank) == (1, 1) else lambda g: g)
            loss_of(model, step, rank).backward()
            hook.remove()
            if step == 1:
                found = obey(gs, optimizer, model)
            else:
                last = gs.step(optimizer)
            seen.append(weights(model))
    return seen, found, last


def test_a_skipped_step_leaves_weights_and_drops_gradients(ranks):
    def obey(gs, optimizer, model):
        report = gs.step(optimizer, zero_grad=False)
        assert all(p.grad is None for p in model.parameters())
        return report

    results = ranks(2, lambda rank, attach: train(rank, attach, Clip(max_norm=1.0, nonfinite="skip"), obey))
    for seen, report, last in results:
        assert (report.skipped, report.action, report.step) == (True, "skip", 1)
        assert_same_bits(seen[1], seen[2])
        assert (last.skipped, last.action, last.step) == (False, "step", 2)
        assert moved(seen[2], seen[3])
        assert_same_bits(seen[3], results[0][0][3])


def test_an_optimizer_that_is_called_after_a_skipped_finish_does_nothing(ranks):
    def obey(gs, optimizer, model):
        report = gs.finish()
        optimizer.step()
        return report

    for seen, report, _ in ranks(
        2, lambda rank, attach: train(rank, attach, Clip(max_norm=1.0, nonfinite="skip"), obey)
    ):
        assert report.skipped
        assert_same_bits(seen[1], seen[2])


def test_a_raised_step_raises_on_every_rank_and_the_next_one_works(ranks):
    def obey(gs, optimizer, model):
        with pytest.raises(ClipRaised, match="step 1") as caught:
            gs.step(optimizer)
        assert all(p.grad is None for p in model.parameters())
        assert gs.report == caught.value.report
        return caught.value

    results = ranks(2, lambda rank, attach: train(rank, attach, Clip(max_norm=1.0, nonfinite="raise"), obey))
    for seen, error, last in results:
        assert (error.report.action, error.group) == ("raise", "all")
        assert_same_bits(seen[1], seen[2])
        assert (last.action, last.step) == ("step", 2)
        assert_same_bits(seen[3], results[0][0][3])


def test_zeros_are_stepped(ranks):
    """With momentum the weights still move, as they do of gradients that are 0."""

    def obey(gs, optimizer, model):
        report = gs.finish()
        assert all(not p.grad.any() for p in model.parameters())
        optimizer.step()
        model.zero_grad()
        return report

    results = ranks(2, lambda rank, attach: train(rank, attach, Clip(max_norm=1.0, nonfinite="zero"), obey))
    for seen, report, last in results:
        assert (report.skipped, report.action, report.groups[0].action) == (False, "step", "zero")
        assert moved(seen[1], seen[2])
        assert all(weight.isfinite().all() for weight in seen[3].values())
        assert last.step == 2


# torch's functions


def zeroing(norms: Norms) -> None:
    norms.daemon.script["step.finish"] = lambda params: after(norms, params, "zero", coefficient=0)
    norms.daemon.script["clip.apply"] = norms.daemon.script["step.finish"]


def after(norms: Norms, params: dict[str, Any], action: str, **more: Any) -> Any:
    norms.daemon.attempt += 1
    group = {
        "name": "all",
        "norm": "NaN",
        "threshold": 0.5,
        "coefficient": more.get("coefficient", 1),
        "clipped": False,
        "reason": "norm is not finite: nan",
        "action": action,
        "spike": False,
        "watch": [],
    }
    more |= {"skipped": action != "zero"}
    norms.norm = math.nan
    step = "step" if action == "zero" else action
    return norms.answer(params, groups=[group], action=step, reason=group["reason"], **more)


@pytest.mark.parametrize("halves", [False, True])
def test_drop_ins_write_zeros_where_a_product_would_be_nan(daemon, norms, halves):
    model = net()
    init(daemon, model, clip=Clip(nonfinite="zero"))
    backward(model)
    next(model.parameters()).grad.view(-1)[0] = math.nan
    zeroing(norms)
    if halves:
        norm = gst.get_total_norm([p.grad for p in model.parameters()])
        gst.clip_grads_with_norm_(model.parameters(), 0.5, norm)
    else:
        norm = gst.clip_grad_norm_(model.parameters(), 0.5)
    assert norm.isnan()
    assert all(not gradient.any() for gradient in copies(model))


def test_drop_ins_raise_and_multiply_nothing(daemon, norms):
    model = net()
    init(daemon, model, clip=Clip(nonfinite="raise"))
    backward(model)
    before = copies(model)
    daemon.script["step.finish"] = lambda params: after(norms, params, "raise")
    with pytest.raises(ClipRaised):
        gst.clip_grad_norm_(model.parameters(), 0.5)
    assert all(map(torch.equal, copies(model), before))
    assert gst.last_report().action == "raise"
    daemon.script["step.finish"] = norms.step_finish
    assert gst.clip_grad_norm_(model.parameters(), 0.5).isfinite()


def test_drop_ins_declare_the_policy_and_give_the_ceiling_with_each_step(daemon, norms):
    model = net()
    init(daemon, model, clip=Clip.percentile(spike="raise", watch=[gradsync.ZScore()]))
    backward(model)
    gst.clip_grad_norm_(model.parameters(), 0.25)
    (declared,) = daemon.of("gradients.declare")[-1]["options"]["clip"]
    assert declared["policy"] == {"kind": "percentile", "percentile": 95.0, "window": 1000, "warmup": 100}
    assert (declared["spike"], declared["watch"][0]["kind"], declared["zero_rule"]) == ("raise", "zscore", "zero")
    assert daemon.of("step.finish")[-1]["max_norm"] == 0.25


@pytest.mark.parametrize("setting", ["nonfinite", "spike"])
def test_a_skip_that_nobody_could_obey_is_refused(daemon, setting):
    with pytest.raises(UsageError, match=f"{setting}='skip'.*the caller steps the optimizer"):
        init(daemon, net(), clip=Clip(**{setting: "skip"}))
    assert daemon.of("gradients.declare") == []


def test_settings_of_several_groups_are_refused(daemon):
    with pytest.raises(UsageError, match=r"give one gradsync\.Clip"):
        init(daemon, net(), clip={"all": Clip()})


def test_observed_policies_only_watch(daemon, norms, monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "observe")
    model = net()
    observer = init(daemon, model, clip=Clip.percentile(nonfinite="skip", watch=[gradsync.ZScore()]))
    assert observer._declared.wait(30)
    (declared,) = daemon.of("gradients.declare")[-1]["options"]["clip"]
    assert declared["policy"] == {"kind": "observe"}
    assert [policy["kind"] for policy in declared["watch"]] == ["percentile", "zscore"]
    assert declared["max_norm"] == 1.0


def test_auto_clipping_watches_a_run_that_is_observed_as_it_is(daemon, norms, monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "observe")
    observer = init(daemon, net(), clip=Clip.auto(window=200))
    assert observer._declared.wait(30)
    options = daemon.of("gradients.declare")[-1]["options"]
    assert options["clip"][0]["policy"] == {"kind": "observe"}
    assert options["clip"][0]["watch"] == [{"kind": "auto", "percentile": 95.0, "window": 200, "warmup": 100}]
    assert options["mode"] == "torch", "as in mode clip"


EIGHT = [gradsync.Percentile(percentile=10.0 * (1 + i)) for i in range(8)]


@pytest.mark.parametrize("clip", [Clip(policy=EIGHT[3], watch=EIGHT), Clip.observe(*EIGHT)])
def test_eight_policies_watch_a_run_that_is_observed(daemon, norms, monkeypatch, clip):
    monkeypatch.setenv("GRADSYNC_MODE", "observe")
    observer = init(daemon, net(), clip=clip)
    assert observer._declared.wait(30)
    (declared,) = daemon.of("gradients.declare")[-1]["options"]["clip"]
    assert declared["policy"] == {"kind": "observe"}
    assert [policy["percentile"] for policy in declared["watch"]] == [10, 20, 30, 40, 50, 60, 70, 80]


def test_a_ninth_policy_that_would_watch_is_refused(daemon, monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "observe")
    with pytest.raises(UsageError, match=r"ZScore\(.*watches as well, beside 8"):
        init(daemon, net(), clip=Clip.zscore(watch=EIGHT))
    assert daemon.of("gradients.declare") == []


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_modes_that_clip_nothing_keep_what_was_saved(daemon, norms, monkeypatch, mode):
    monkeypatch.setenv("GRADSYNC_MODE", mode)
    first, second = init(daemon, net()), init(daemon, net())
    saved = {"version": 1, "policies": "00ff"}
    assert set(first.state_dict()) == set(saved)
    second.load_state_dict(saved)
    assert second.state_dict() == saved
    assert first.state_dict()["policies"] == ""
    with pytest.raises(UsageError, match="load_state_dict"):
        second.load_state_dict({})


def test_an_observer_is_told_what_raises_and_does_not_raise(daemon, norms, monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "observe")
    model = net()
    observer = init(daemon, model, clip=Clip(max_norm=1.0, nonfinite="raise"))
    assert observer._declared.wait(30)
    daemon.script["step.finish"] = lambda params: after(norms, params, "raise")
    for _ in range(2):
        model.zero_grad()
        backward(model)
        before = copies(model)
        observer._patience = 20.0  # whatever else the machine does
        gst.observe()
        assert all(map(torch.equal, copies(model), before))
    assert observer.wait(20.0).report.action == "raise"
    assert (gst.last_report().step, observer.skipped) == (1, 0)
