"""What happens to `p.grad`: layouts, exchanged tensors, absent ones, late ones."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from models import assert_close, assert_same_bits, batch, loss_of, mlp, train_alone, weights
from torch import nn
from torch.nn.functional import mse_loss

import gradsync
import gradsync.torch as gst


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


# layouts


class Layouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, dtype=torch.float64).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(5, 4, dtype=torch.float64).t())
        self.strided = nn.Parameter(torch.randn(4, 10, dtype=torch.float64)[:, ::2])  # not dense
        self.scalar = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.empty = nn.Parameter(torch.empty(0, 3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.view(2, 3, 4, 4)).mean((2, 3)) @ (self.transposed + self.strided)
        return y * self.scalar + self.empty.sum()


def test_gradients_have_the_strides_autograd_would_give(ranks):
    template = Layouts()
    x = [torch.randn(2, 48, dtype=torch.float64) for _ in range(2)]

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model) as gs:
            model(x[rank]).square().sum().backward()
            gs.finish()
            strides = {name: p.grad.stride() for name, p in model.named_parameters()}
            return gradients(model), strides

    reference = copy.deepcopy(template)
    ((reference(x[0]).square().sum() + reference(x[1]).square().sum()) / 2).backward()
    for got, strides in ranks(2, body):
        assert_close(got, gradients(reference))
        assert strides == {name: p.grad.stride() for name, p in reference.named_parameters()}
    assert template.conv.weight.stride() == strides["conv.weight"] == (27, 1, 9, 3)


def test_ranks_of_different_layout_are_refused(ranks):
    def body(rank, attach):
        model = nn.Conv2d(3, 4, 3)
        if rank == 1:
            model = model.to(memory_format=torch.channels_last)
        attach(model, weights="skip")

    for outcome in ranks.outcomes(2, body):
        assert isinstance(outcome, gst.ModuleRefused)
        assert outcome.name == "weight"
        assert "memory_format" in str(outcome)


# exchanged gradients


@pytest.mark.parametrize("habit", ["set_to_none", "zeros", "both", "by hand"])
def test_every_way_to_zero_gradients_gives_the_same_training(ranks, habit):
    template = mlp()
    alone, _ = train_alone(template, steps=4, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(4):
                if habit in ("set_to_none", "both"):
                    optimizer.zero_grad()
                if habit in ("zeros", "both"):
                    model.zero_grad(set_to_none=False)
                if habit == "by hand":
                    for parameter in model.parameters():
                        parameter.grad = torch.zeros_like(parameter)
                loss_of(model, step, rank).backward()
                gs.step(optimizer, zero_grad=False)
        return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_create_graph_keeps_the_graph_until_the_step(ranks):
    template = mlp()

    def penalty(model, rank):
        loss_of(model, 0, rank).backward(create_graph=True)
        first = sum(p.grad.square().sum() for p in model.parameters())
        for parameter in model.parameters():
            parameter.grad = None
        (loss_of(model, 0, rank) + first).backward(create_graph=True)

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model) as gs:
            for _ in range(2):
                penalty(model, rank)
                gs.finish()
                result = gradients(model)
                assert not any(p.grad.requires_grad for p in model.parameters())
                model.zero_grad()
            return result, gs.stats()

    shares = []
    for rank in range(2):
        model = copy.deepcopy(template)
        penalty(model, rank)
        shares.append({name: p.grad.detach() for name, p in model.named_parameters()})
    for got, stats in ranks(2, body):
        assert_close(got, {name: (shares[0][name] + shares[1][name]) / 2 for name in got})
        assert stats.settled == 2 * len(got)
        assert stats.launched_early == 0
    gc.collect()


def test_what_was_copied_or_rebound_stands_in_the_report_of_its_step(ranks):
    def moved(report):
        return report.copied_gradients, report.settled_gradients, report.rebound_gradients

    def body(rank, attach):
        model = mlp()
        optimizer = sgd(model)
        seen = []
        with attach(model, accumulate=2) as gs:
            for step in range(4):
                loss_of(model, step, rank).backward()
                if step == 1 and rank == 0:  # the same memory under another tensor
                    model[0].weight.grad = model[0].weight.grad.detach()
                if step == 2:  # other memory
                    model[0].weight.grad = model[0].weight.grad.clone()
                loss_of(model, step, rank).backward()
                if step == 0:  # no bucket has gone yet
                    model[0].bias.grad = torch.ones(8, dtype=torch.float64)
                seen.append(moved(gs.step(optimizer)))
            stats = gs.stats()
            assert moved(gs.report) == seen[-1]
            totals = (stats.copied, stats.settled, stats.rebound)
            assert totals == tuple(map(sum, zip(*seen, strict=True)))
        return seen

    every = (6, 0, 0)
    first, second = ranks(2, body)
    assert first == [(6, 1, 0), (6, 0, 1), (7, 0, 0), every]
    assert second == [(6, 1, 0), every, (7, 0, 0), every]


def test_the_counts_of_a_failed_attempt_are_not_those_of_the_next(real_ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            with pytest.raises(gradsync.errors.StepMismatch):
                gs.step(sgd(model), max_norm=1.0 + rank)
            loss_of(model, 0, rank).backward()
            return gs.step(sgd(model)).copied_gradients, gs.stats().copied

    assert real_ranks(2, body) == [(6, 12)] * 2


def test_gradients_set_by_hand_are_reduced(ranks):
    def body(rank, attach):
        model = nn.Linear(2, 1, bias=False)
        with attach(model, weights="broadcast") as gs:
            model.weight.grad = torch.full((1, 2), float(rank + 1))
            gs.finish()
            return model.weight.grad.tolist()

    assert ranks(2, body) == [[[1.5, 1.5]]] * 2


def test_gradients_written_by_hand_into_zeroed_ones_are_reduced(ranks):
    def body(rank, attach):
        model = nn.Linear(2, 1, bias=False)
        seen = []
        with attach(model, weights="broadcast") as gs:
            model.weight.sum().backward()
            for step in range(3):
                gs.finish()
                seen.append(None if model.weight.grad is None else model.weight.grad.tolist())
                model.zero_grad(set_to_none=False)
                if step == 0:
                    model.weight.grad += rank + 1
        return seen

    assert ranks(2, body) == [[[[1.0, 1.0]], [[1.5, 1.5]], None]] * 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_parameters_exchanged_by_load_state_dict_are_followed(ranks):
    template = mlp()
    other = mlp(seed=1).state_dict()
    alone, _ = train_alone(mlp(seed=1), steps=3, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model) as gs:
            stale = sgd(model)
            loss_of(model, 0, rank).backward()
            gs.step(stale)
            model.load_state_dict({name: value.clone() for name, value in other.items()}, assign=True)
            with pytest.raises(gst.ParameterChanged, match="make the optimizer after"):
                gs.step(stale)
            optimizer = sgd(model)
            for step in range(3):
                loss_of(model, step, rank).backward()
                gs.step(optimizer)
            return weights(model), gs.stats().replaced_parameters

    results = ranks(2, body)
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(alone))
    assert results[0][1] == 6


# used, unused, tied, frozen


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Linear(6, 3, dtype=torch.float64)
        self.sometimes = nn.Linear(6, 3, dtype=torch.float64)
        self.never = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.always(x) + self.sometimes(x) if both else self.always(x)


def test_a_tensor_unused_on_all_ranks_is_absent_and_one_used_elsewhere_is_reduced(ranks):
    template = Branches()

    def body(rank, attach):
        model = copy.deepcopy(template)
        seen = []
        with attach(model) as gs:
            for step in range(4):
                x, y = batch(step, rank)
                mse_loss(model(x, both=rank == 0 and step != 2), y).backward()
                report = gs.finish()
                seen.append((gradients(model), report.absent))
                model.zero_grad()
            return seen, gs.stats()

    def expected(step):
        model = copy.deepcopy(template)
        losses = []
        for rank in range(2):
            x, y = batch(step, rank)
            losses.append(mse_loss(model(x, both=rank == 0 and step != 2), y))
        (sum(losses) / 2).backward()
        return gradients(model)

    for seen, stats in ranks(2, body):
        for step, (got, absent) in enumerate(seen):
            wanted = expected(step)
            assert {name for name, g in got.items() if g is None} == {n for n, g in wanted.items() if g is None}
            assert set(absent) == {name for name, g in wanted.items() if g is None}
            assert_close(
                {name: g for name, g in got.items() if g is not None},
                {name: g for name, g in wanted.items() if g is not None},
            )
        assert stats.absent == 2 * 4 + 2


def test_stale_arena_bytes_are_never_reduced(ranks):
    template = Branches()

    def body(rank, attach):
        model = copy.deepcopy(template)
        seen = []
        with attach(model) as gs:
            for both in (True, False, False):
                x, y = batch(0, rank)
                mse_loss(model(x, both=both), y).backward()
                report = gs.step(torch.optim.SGD(model.parameters(), lr=0.0), zero_grad=False)
                seen.append((report.absent, model.sometimes.weight.grad is None))
                model.zero_grad(set_to_none=False)
        return seen

    for seen in ranks(2, body):
        assert [is_none for _, is_none in seen] == [False, True, True]
        assert "sometimes.weight" in seen[1][0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 5, dtype=torch.float64)
        self.mid = nn.Linear(5, 5, dtype=torch.float64)
        self.head = nn.Linear(5, 7, bias=False, dtype=torch.float64)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mid(self.embed(tokens)))


def test_tied_weights_are_one_tensor_counted_once(ranks):
    template = Tied()
    tokens = [torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])]

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model) as gs:
            for _ in range(3):
                model.zero_grad()
                model(tokens[rank]).square().sum().backward()
                report = gs.finish()
            return gradients(model), report.norm, report.counted_elements

    reference = copy.deepcopy(template)
    ((reference(tokens[0]).square().sum() + reference(tokens[1]).square().sum()) / 2).backward()
    norm = torch.stack([p.grad.norm() for p in reference.parameters()]).norm().item()
    for got, got_norm, counted in ranks(2, body):
        assert_close(got, gradients(reference))
        assert got_norm == pytest.approx(norm, rel=1e-6)
        assert counted == 7 * 5 + 5 * 5 + 5


def test_frozen_parameters_stay_out_and_unfreezing_is_refused(ranks):
    template = mlp()

    def body(rank, attach):
        model = copy.deepcopy(template)
        model[0].requires_grad_(False)
        optimizer = sgd(model)
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            gs.step(optimizer)
            changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), template.parameters(), strict=True)]
            model[0].requires_grad_(True)
            with pytest.raises(gst.ParameterChanged, match=r"'0\.weight'.*frozen"):
                gs.step(optimizer)
            return changed

    assert ranks(2, body) == [[False, False, True, True, True, True]] * 2


def test_an_optimizer_with_a_parameter_of_another_module_is_refused(ranks):
    def body(rank, attach):
        model, other = mlp(), mlp()
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            with pytest.raises(gst.ParameterChanged, match=r"param_groups\[1\]\['params'\]\[0\]"):
                gs.step(torch.optim.SGD([{"params": model.parameters()}, {"params": other.parameters()}], lr=0.1))

    ranks(1, body)
