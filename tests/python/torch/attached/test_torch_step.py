"""Steps of plain modules: equal to one process on the concatenated batch, equal bits on all ranks."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from models import assert_close, assert_same_bits, batch, loss_of, mlp, train_alone, weights
from torch import nn
from torch.nn.functional import mse_loss

import gradsync
from gradsync._transport._connection import Connection
from gradsync.torch._synced import _attach


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("formula", ["strict", "torch"])
def test_ranks_train_as_one_process_does(ranks, count, formula):
    template = mlp()
    alone, norms = train_alone(template, steps=6, parts=count, max_norm=0.5, formula=formula)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model, clip=gradsync.Clip(max_norm=0.5), formula=formula) as gs:
            reports = []
            for step in range(6):
                loss_of(model, step, rank).backward()
                reports.append(gs.step(optimizer))
        return weights(model), reports

    results = ranks(count, body)
    for got, reports in results:
        assert_same_bits(got, results[0][0])
        assert_close(got, weights(alone))
        assert [r.norm for r in reports] == pytest.approx(norms, rel=1e-6)
        assert [r.clipped for r in reports] == [norm > 0.5 for norm in norms]
        assert all(r.threshold == 0.5 for r in reports)


@pytest.mark.parametrize("told", [1, 3])
def test_accumulation_equals_one_large_batch(ranks, told):
    template = mlp()
    alone, _ = train_alone(template, steps=5, parts=6)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model, accumulate=told) as gs:
            for step in range(5):
                for micro in range(3):
                    (loss_of(model, step, 3 * rank + micro) / 3).backward()
                gs.step(optimizer)
            return weights(model), gs.stats()

    results = ranks(2, body)
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(alone))
    stats = results[0][1]
    assert stats.hooks == 5 * 3 * 6
    assert stats.copied == 5 * 6  # once per parameter and step: later micro-batches add to the arena in place
    assert stats.launched_early > 0


def test_nothing_is_launched_early_where_saying_ready_would_wait(ranks, monkeypatch):
    template = mlp()
    declare = _attach._declare

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(6):
                loss_of(model, step, rank).backward()
                gs.step(optimizer)
            return weights(model), gs.stats()

    early = ranks(2, body)

    def declare_late(*given):
        grads = declare(*given)
        grads.early = False
        return grads

    monkeypatch.setattr(_attach, "_declare", declare_late)
    late = ranks(2, body)
    assert early[0][1].launched_early > 0
    assert late[0][1].launched_early == 0
    assert late[0][1].launched_at_step > 0
    assert_same_bits(late[0][0], early[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finish_leaves_the_reduced_gradients_and_the_optimizer_to_the_caller(ranks, dtype):
    template = mlp(dtype=dtype)

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model) as gs:
            loss_of(model, 0, rank, dtype).backward()
            gs.finish()
            return {name: p.grad.clone() for name, p in model.named_parameters()}

    results = ranks(2, body)
    reference = copy.deepcopy(template)
    ((loss_of(reference, 0, 0, dtype) + loss_of(reference, 0, 1, dtype)) / 2).backward()
    assert_same_bits(results[0], results[1])
    assert_close(results[0], {name: p.grad for name, p in reference.named_parameters()})


def test_step_after_finish_is_refused_while_gradients_are_there(ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            gs.finish()
            with pytest.raises(gradsync.errors.UsageError, match="completed this step already"):
                gs.step(sgd(model))

    ranks(1, body)


def test_max_norm_of_a_step_replaces_the_declared_one(ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model, clip=gradsync.Clip(max_norm=1e-3)) as gs:
            thresholds = []
            for step, limit in enumerate([{}, {"max_norm": 0.25}, {"max_norm": None}]):
                loss_of(model, step, rank).backward()
                thresholds.append(gs.step(sgd(model), **limit).threshold)
            return thresholds

    assert ranks(2, body) == [[1e-3, 0.25, math.inf]] * 2


def test_an_infinite_max_norm_measures_only(ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model, clip=gradsync.Clip(max_norm=1e-3)) as gs:
            loss_of(model, 0, rank).backward()
            return gs.step(sgd(model), max_norm=math.inf)

    for report in ranks(2, body):
        assert (report.clipped, report.threshold) == (False, math.inf)
        assert report.norm > 1e-3


def test_a_loss_that_the_optimizer_computes_itself(ranks):
    def body(rank, attach):
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        with attach(model) as gs:

            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, 0, rank)
                loss.backward()
                gs.finish()
                return loss

            optimizer.step(closure)
        return weights(model)

    first, second = ranks(2, body)
    assert_same_bits(first, second)


def test_what_steps_like_an_optimizer_is_one(ranks):
    class Wrapper:
        def __init__(self, optimizer):
            self._optimizer = optimizer

        def __getattr__(self, name):
            return getattr(self._optimizer, name)

    def body(rank, attach):
        model = mlp()
        before = weights(model)
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            gs.step([Wrapper(sgd(model))])
        return any((before[name] != after).any() for name, after in weights(model).items())

    assert ranks(2, body) == [True, True]


def test_sum_does_not_divide(ranks):
    def body(rank, attach):
        model = nn.Linear(1, 1, bias=False)
        with attach(model, reduce="sum", weights="broadcast") as gs:
            (model.weight * (rank + 1)).sum().backward()
            gs.finish()
            return model.weight.grad.item()

    assert ranks(3, body) == [6.0] * 3


def test_clip_groups_are_clipped_apart(ranks):
    template = mlp()

    def body(rank, attach):
        model = copy.deepcopy(template)
        clip = {"first": gradsync.Clip(max_norm=0.1), "rest": gradsync.Clip(max_norm=100.0)}
        with attach(model, clip=clip, clip_group=lambda name: "first" if name.startswith("0.") else "rest") as gs:
            loss_of(model, 0, rank).backward()
            report = gs.finish()
            norm = torch.stack([model[0].weight.grad.norm(), model[0].bias.grad.norm()]).norm()
            return {group.name: group.clipped for group in report.groups}, norm.item()

    for groups, norm in ranks(2, body):
        assert groups == {"first": True, "rest": False}
        assert norm == pytest.approx(0.1, rel=1e-6)


def test_a_scaled_loss_is_unscaled_once_and_a_non_finite_step_is_skipped_everywhere(ranks):
    template = mlp()
    alone, norms = train_alone(template, steps=1, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            (loss_of(model, 0, rank) * 1024).backward()
            first = gs.step(optimizer, scale=1024.0)
            after_first = weights(model)
            (loss_of(model, 1, rank) * (math.inf if rank == 0 else 1.0)).backward()
            second = gs.step(optimizer, scale=1024.0)
            return first, after_first, second, weights(model)

    for first, after_first, second, after_second in ranks(2, body):
        assert first.norm == pytest.approx(norms[0], rel=1e-6)
        assert not first.skipped
        assert_close(after_first, weights(alone))
        assert second.found_inf
        assert second.skipped
        assert_same_bits(after_second, after_first)


def test_two_optimizers_and_parameter_groups(ranks):
    template = mlp()

    def optimizers(model):
        body = [{"params": [model[0].weight, model[2].weight], "lr": 0.2}, {"params": [model[0].bias, model[2].bias]}]
        return [torch.optim.SGD(body, lr=0.1), torch.optim.AdamW(model[4].parameters(), lr=0.01)]

    def body(rank, attach):
        model = copy.deepcopy(template)
        both = optimizers(model)
        with attach(model) as gs:
            for step in range(4):
                loss_of(model, step, rank).backward()
                gs.step(both)
        return weights(model)

    reference = copy.deepcopy(template)
    both = optimizers(reference)
    for step in range(4):
        for optimizer in both:
            optimizer.zero_grad()
        ((loss_of(reference, step, 0) + loss_of(reference, step, 1)) / 2).backward()
        for optimizer in both:
            optimizer.step()
    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(reference))


class Mixed(nn.Module):
    """A parameter of each dtype of the wire."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Linear(6, 6).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        return x.float()


def test_mixed_dtypes_keep_their_own(ranks):
    template = Mixed()

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model, clip=gradsync.Clip(max_norm=1e9)) as gs:
            model(batch(0, rank, torch.float32)[0]).square().mean().backward()
            gs.finish()
            return {name: p.grad.clone() for name, p in model.named_parameters()}

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    shares = []
    for rank in range(2):
        model = copy.deepcopy(template)
        model(batch(0, rank, torch.float32)[0]).square().mean().backward()
        shares.append({name: p.grad.double() for name, p in model.named_parameters()})
    for name, gradient in results[0].items():
        exact = (shares[0][name] + shares[1][name]) / 2
        assert gradient.dtype == dict(template.named_parameters())[name].dtype
        torch.testing.assert_close(gradient, exact.to(gradient.dtype), rtol=0, atol=0)


def test_bfloat16_parameters_train(ranks):
    template = mlp(dtype=torch.bfloat16)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with attach(model, clip=gradsync.Clip(max_norm=0.5)) as gs:
            for step in range(4):
                loss_of(model, step, rank, torch.bfloat16).backward()
                gs.step(optimizer)
        return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert any(not torch.equal(results[0][name], p) for name, p in template.named_parameters())


def test_two_losses_in_one_step(ranks):
    template = mlp()

    def losses(model, step, part):
        x, y = batch(step, part)
        return mse_loss(model(x), y), model(x).square().mean()

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(5):
                for loss in losses(model, step, rank):
                    loss.backward()
                gs.step(optimizer)
            return weights(model), gs.stats()

    reference = copy.deepcopy(template)
    optimizer = sgd(reference)
    for step in range(5):
        optimizer.zero_grad()
        (sum(sum(losses(reference, step, part)) for part in range(2)) / 2).backward()
        optimizer.step()
    results = ranks(2, body)
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(reference))
    assert results[0][1].launched_early > 0  # the count of two is learnt


def test_the_largest_element_as_norm(real_ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model, norm_type=math.inf) as gs:
            loss_of(model, 0, rank).backward()
            report = gs.finish()
            return report.norm, max(p.grad.abs().max().item() for p in model.parameters())

    for norm, largest in real_ranks(2, body):
        assert norm == largest


def test_norms_of_layers(real_ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model, layer=lambda name: name.split(".")[0]) as gs:
            loss_of(model, 0, rank).backward()
            report = gs.finish()
            wanted = {key: torch.cat([p.grad.flatten() for p in model[int(key)].parameters()]).norm() for key in "024"}
            return {layer.name: layer.norm for layer in report.layers}, wanted

    for got, wanted in real_ranks(2, body):
        assert got == {key: pytest.approx(norm.item(), rel=1e-12) for key, norm in wanted.items()}


def test_after_a_failed_step_the_next_one_counts(real_ranks):
    template = mlp()
    alone, _ = train_alone(template, steps=4, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(4):
                if step == 3:  # buckets go out early by now
                    loss_of(model, step, rank).backward()
                    with pytest.raises(gradsync.errors.StepMismatch):
                        gs.step(optimizer, max_norm=1.0 + rank)
                    assert all(p.grad is None for p in model.parameters())
                loss_of(model, step, rank).backward()
                gs.step(optimizer)
        return weights(model)

    results = real_ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))


def test_an_interrupted_step_is_not_taken_for_the_next_one(real_ranks, monkeypatch):
    """Ctrl-C while the answer is awaited: the others may have reduced what this rank then overwrites."""
    interrupted = threading.local()
    wait = Connection.wait

    def wait_or_interrupt(connection, pending, timeout):
        result = wait(connection, pending, timeout)
        if getattr(interrupted, "now", False):
            interrupted.now = False
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(Connection, "wait", wait_or_interrupt)

    def body(rank, attach):
        model = mlp()
        gs = attach(model)
        loss_of(model, 0, rank).backward()
        interrupted.now = rank == 1
        if rank == 0:
            gs.finish()  # done on all ranks, though rank 1 does not hear of it
            return "done"
        with pytest.raises(KeyboardInterrupt):
            gs.finish()
        assert all(p.grad is None for p in model.parameters())
        loss_of(model, 1, rank).backward()
        with pytest.raises(gradsync.errors.UsageError, match="attach again"):
            gs.step(sgd(model))
        return "refused"

    assert real_ranks(2, body) == ["done", "refused"]


def test_what_was_unused_at_a_refused_call_may_still_be_used(real_ranks):
    def body(rank, attach):
        model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
        with attach(model, weights="broadcast") as gs:
            (model[0].weight * (rank + 1)).sum().backward()
            with pytest.raises(gradsync.errors.UsageError, match="timeout"):
                gs.finish(timeout=-1.0)
            (model[1].weight * (rank + 1)).sum().backward()
            report = gs.finish()
            return [layer.weight.grad.item() for layer in model], report.absent

    assert real_ranks(2, body) == [([1.5, 1.5], ())] * 2


def test_refused_arguments_leave_the_step_open(real_ranks):
    template = mlp()
    alone, _ = train_alone(template, steps=3, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(3):
                loss_of(model, step, rank).backward()
                with pytest.raises(gradsync.errors.InvalidParams, match="max_norm"):
                    gs.step(optimizer, max_norm=-1.0)
                with pytest.raises(gradsync.errors.UsageError, match="timeout"):
                    gs.step(optimizer, timeout=-1.0)
                for given, text in (
                    (model.parameters(), "got Parameter"),
                    (None, "got NoneType"),
                    (torch.optim.LBFGS(model.parameters()), r"LBFGS.*step\(closure\)"),
                ):
                    with pytest.raises(gradsync.errors.UsageError, match=text):
                        gs.step(given)
                gs.step(optimizer)
        return weights(model)

    results = real_ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))
