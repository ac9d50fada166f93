"""When hooks fire: checkpointing, compilation, counts that change, gradients that come too late."""

from __future__ import annotations

import copy
import itertools
import threading

import pytest
import torch
from models import assert_close, assert_same_bits, batch, loss_of, mlp, train_alone, weights
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import gradsync
import gradsync.torch as gst


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


# checkpointing, compilation


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(6, 6, dtype=torch.float64) for _ in range(4))
        self.head = nn.Linear(6, 3, dtype=torch.float64)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = (
                block(x).tanh()
                if self.reentrant is None
                else checkpoint(lambda y, block=block: block(y).tanh(), x, use_reentrant=self.reentrant)
            )
        # Shared between a checkpointed and an ordinary use: fires twice where re-entrant.
        return self.head(self.blocks[0](x))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_activation_checkpointing(ranks, reentrant, accumulate):
    template = Checkpointed(None)

    def body(rank, attach):
        model = copy.deepcopy(template)
        model.reentrant = reentrant
        optimizer = sgd(model)
        with attach(model, accumulate=accumulate) as gs:
            for step in range(4):
                for micro in range(accumulate):
                    x, y = batch(step, rank * accumulate + micro)
                    (mse_loss(model(x.requires_grad_()), y) / accumulate).backward()
                gs.step(optimizer)
            return weights(model), gs.stats()

    alone, _ = train_alone(template, steps=4, parts=2 * accumulate)
    results = ranks(2, body)
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(alone))
    assert results[0][1].launched_early > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules(ranks, backend):
    template = mlp()
    alone, _ = train_alone(template, steps=3, parts=2)
    compiling = threading.Lock()  # the compiler is one per process; ranks are threads here

    def body(rank, attach):
        model = copy.deepcopy(template)
        with compiling:
            compiled = torch.compile(model, backend=backend)
            loss_of(compiled, 0, rank)
        optimizer = sgd(model)
        with attach(compiled) as gs:
            for step in range(3):
                with compiling:
                    loss_of(compiled, step, rank).backward()
                gs.step(optimizer)
        return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_module_compiled_after_attach(ranks, how):
    template = mlp()
    alone, _ = train_alone(template, steps=3, parts=2)
    compiling = threading.Lock()

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            used = model
            if how == "wrapped":
                used = torch.compile(model, backend="aot_eager")
            else:
                model.compile(backend="aot_eager")
            for step in range(3):
                with compiling:
                    loss_of(used, step, rank).backward()
                gs.step(optimizer)
        return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))


# late gradients


def test_a_gradient_after_its_bucket_was_launched_is_an_error_that_names_it(ranks):
    def body(rank, attach):
        model = mlp()
        optimizer = sgd(model)
        gs = attach(model)
        for step in range(2):
            loss_of(model, step, rank).backward()
            gs.step(optimizer)
        loss_of(model, 2, rank).backward()
        if rank == 1:
            with pytest.raises(gst.LateGradient) as at_the_hook:
                loss_of(model, 3, rank).backward()
            assert at_the_hook.value.name in ("4.bias", "4.weight")
            assert at_the_hook.value.step == 2
            for _ in range(2):
                with pytest.raises(gst.LateGradient, match=at_the_hook.value.name) as at_the_step:
                    gs.step(optimizer)
                assert at_the_step.value is at_the_hook.value
            return "late"
        before = weights(model)
        with pytest.raises(gradsync.errors.RankLost) as lost:
            gs.step(optimizer)
        assert 1 in lost.value.ranks
        assert all(p.grad is None for p in model.parameters())
        assert_same_bits(weights(model), before)
        return "lost"

    assert ranks(2, body) == ["lost", "late"]


def test_a_gradient_taken_away_after_its_launch_is_an_error(ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            gs.step(sgd(model))
            loss_of(model, 1, rank).backward()
            model[4].bias.grad = None
            with pytest.raises(gst.LateGradient, match=r"4\.bias"):
                gs.step(sgd(model))

    ranks(1, body)


def test_a_backward_begun_again_after_its_gradients_were_dropped(ranks):
    template = mlp()
    alone, _ = train_alone(template, steps=4, parts=4)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model, accumulate=2) as gs:
            for step in range(4):
                if step == 2 and rank == 0:
                    loss_of(model, 77, 0).backward()
                    optimizer.zero_grad()
                for micro in range(2):
                    (loss_of(model, step, 2 * rank + micro) / 2).backward()
                gs.step(optimizer)
            return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))


def test_a_gradient_changed_after_its_launch_is_an_error(ranks):
    """As a script's own clip before step() would: what was reduced is not what the caller sees, and differs by rank."""

    def clip(model):
        for p in model.parameters():
            p.grad.clamp_(-1e-3, 1e-3)

    def body(rank, attach):
        model = mlp()
        gs = attach(model)
        loss_of(model, 0, rank).backward()
        clip(model)  # nothing goes early in the first step
        gs.step(sgd(model))
        loss_of(model, 1, rank).backward()
        clip(model)
        with pytest.raises(gst.LateGradient, match="had it changed"):
            gs.step(sgd(model))

    ranks(2, body)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_shorter_steps_between_long_ones(ranks, accumulate):
    """The end of an epoch, or a second loss every other step: nothing is late, and full steps still go early."""
    template = mlp()
    lengths = [2, 2, 1, 2, 1, 2, 2]

    def train(model, finish, parts):
        optimizer = sgd(model)
        for step, length in enumerate(lengths):
            for micro in range(length):
                for part in parts:
                    (loss_of(model, step, 2 * part + micro) / len(parts)).backward()
            finish(optimizer)

    def alone_step(optimizer):
        optimizer.step()
        optimizer.zero_grad()

    def body(rank, attach):
        model = copy.deepcopy(template)
        with attach(model, accumulate=accumulate) as gs:
            train(model, gs.step, [rank])
            return weights(model), gs.stats()

    alone = copy.deepcopy(template)
    train(alone, alone_step, [0, 1])
    results = ranks(2, body)
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(alone))
    assert results[0][1].launched_early > 0


def test_counts_that_change_switch_early_launch_off_until_they_agree_again(ranks):
    template = mlp()

    def without_first_layer(model, step, rank):
        x, y = batch(step, rank)
        return mse_loss(model[4](model[2](x[:, :1].expand(4, 8))), y)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        early = [0]
        with attach(model) as gs:
            for step in range(6):
                partial = step == 2 or (step == 3 and rank == 0)
                (without_first_layer(model, step, rank) if partial else loss_of(model, step, rank)).backward()
                gs.step(optimizer)
                early.append(gs.stats().launched_early)
        return [after - before for before, after in itertools.pairwise(early)]

    for early in ranks(2, body):
        everything = early[1]
        assert early[0] == 0  # nothing is known yet
        assert everything > 0
        assert early[2] < everything  # the bucket of the layer that was left out waits for step()
        assert early[3] < everything  # unused everywhere is no count to wait for
        assert early[4] < everything  # the ranks differed in the step before
        assert early[5] == everything
