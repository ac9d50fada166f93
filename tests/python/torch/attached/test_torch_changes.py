"""A module or an optimizer that is changed after attach: nothing that no rank synchronises reaches the weights."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from models import assert_close, assert_same_bits, loss_of, mlp, train_alone, weights
from torch import nn

import gradsync.torch as gst
from gradsync.errors import UsageError
from gradsync.torch._optimizer_steps import listeners
from gradsync.torch._synced._optimizer_guard import OptimizerGuard


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Extensible(nn.Module):
    """Uses what it was given later."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_parameter("late", None)
        self.head: nn.Module = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.inner(x))
        return y if self.late is None else y * self.late


def add_parameter(model: Extensible) -> None:
    model.late = nn.Parameter(torch.ones(3, dtype=torch.float64))


def add_module(model: Extensible) -> None:
    model.inner.append(nn.Linear(3, 3, dtype=torch.float64))


def exchange_module(model: Extensible) -> None:
    model.head = nn.Linear(3, 3, dtype=torch.float64)


def exchange_declared_module(model: Extensible) -> None:
    model.inner[4] = nn.Linear(8, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (add_parameter, "late"),
        (add_module, "inner.5.weight"),
        (exchange_module, "head.weight"),
        (exchange_declared_module, "inner.4.weight"),
    ],
)
@pytest.mark.parametrize("call", ["step", "finish"])
def test_a_parameter_the_module_got_after_attach_is_named(ranks, change, name, call):
    def body(rank, attach):
        model = Extensible()
        optimizer = sgd(model)
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            gs.step(optimizer)
            before = weights(model.inner)
            change(model)
            optimizer = sgd(model)
            loss_of(model, 1, rank).backward()
            for _ in range(2):  # it stays refused
                with pytest.raises(gst.ParameterChanged, match="attach again") as refused:
                    gs.finish() if call == "finish" else gs.step(optimizer)
                assert refused.value.name == name
            with pytest.raises(gst.ParameterChanged) as refused:
                optimizer.step()
            assert refused.value.name == name
            kept = {n: p for n, p in weights(model.inner).items() if n in before and not n.startswith("4")}
            assert_same_bits(kept, {n: before[n] for n in kept})

    ranks(2, body)


def test_a_module_changed_without_new_parameters_goes_on(ranks):
    template = Extensible()
    alone, _ = train_alone(template, steps=4, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(4):
                if step == 2:
                    model.head = nn.Sequential(nn.Identity())
                    model.inner[1] = nn.Tanh()
                    model.inner.register_parameter("fixed", nn.Parameter(torch.zeros(2), requires_grad=False))
                loss_of(model, step, rank).backward()
                gs.finish()
                optimizer.step()
                optimizer.zero_grad()
            del model.inner.fixed
            return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    assert_close(results[0], weights(alone))


def test_a_frozen_parameter_that_came_later_and_is_unfrozen_is_named(ranks):
    def body(rank, attach):
        model = Extensible()
        model.inner[0].requires_grad_(False)
        with attach(model) as gs:
            other = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(other, assign=True)
            loss_of(model, 0, rank).backward()
            gs.step(sgd(model))
            model.inner[0].weight.requires_grad_(True)
            with pytest.raises(gst.ParameterChanged, match=r"'inner\.0\.weight'.*frozen"):
                gs.finish()

    ranks(1, body)


@pytest.mark.parametrize("exchange", [False, True])
def test_a_parameter_an_optimizer_got_after_attach_is_caught_after_finish_too(ranks, exchange):
    def body(rank, attach):
        model, other = mlp(), mlp(seed=1)[0]  # modules draw from one generator, under a lock
        optimizer = sgd(model)
        with attach(model) as gs:
            for step in range(2):
                loss_of(model, step, rank).backward()
                gs.finish()
                optimizer.step()
                optimizer.zero_grad()
            if exchange:  # as many as before
                optimizer.param_groups[0]["params"][1] = other.weight
                found = r"param_groups\[0\]\['params'\]\[1\]"
            else:
                optimizer.add_param_group({"params": other.parameters()})
                found = r"param_groups\[1\]\['params'\]\[0\]"
            loss_of(model, 2, rank).backward()
            before = weights(model)
            with pytest.raises(gst.ParameterChanged, match=found):
                gs.step(optimizer)
            gs.finish()
            with pytest.raises(gst.ParameterChanged, match=found):
                optimizer.step()
            assert_same_bits(weights(model), before)

    ranks(2, body)


def test_gradients_that_are_not_reduced_do_not_reach_an_optimizer(ranks):
    def body(rank, attach):
        model, bystander = mlp(), mlp()
        optimizer = sgd(model)
        with attach(model) as gs:
            loss_of(model, 0, rank).backward()
            before = weights(model)
            with pytest.raises(UsageError, match=r"SGD\.step\(\).*call finish\(\)"):
                optimizer.step()
            assert_same_bits(weights(model), before)
            loss_of(bystander, 0, rank).backward()
            sgd(bystander).step()  # not of this module
            gs.finish()  # nothing is lost
            optimizer.step()
            after = weights(model)
        loss_of(model, 1, rank).backward()
        optimizer.step()  # closed: the module's own business again
        return after

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
    alone, _ = train_alone(mlp(), steps=1, parts=2)
    assert_close(results[0], weights(alone))


def test_a_closure_that_finishes_the_step(ranks):
    def body(rank, attach):
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        with attach(model) as gs:

            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, 0, rank)
                loss.backward()
                return gs.finish().norm  # the same on all ranks, as LBFGS needs it

            optimizer.step(closure)
        return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])


def test_an_attached_module_that_nobody_holds_is_let_go(ranks):
    def body(rank, attach):
        model = mlp()
        gs = attach(model)
        loss_of(model, 0, rank).backward()
        gs.finish()
        remains = weakref.ref(gs), weakref.ref(model)
        del gs, model
        gc.collect()
        return [ref() for ref in remains]

    assert ranks(1, body) == [[None, None]]


def test_an_optimizer_that_was_checked_is_let_go(ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model) as gs:
            refs = []
            for step in range(3):
                optimizer = sgd(model)
                loss_of(model, step, rank).backward()
                gs.step(optimizer)
                refs.append(weakref.ref(optimizer))
            del optimizer
            gc.collect()
            return [ref() for ref in refs]

    assert ranks(1, body) == [[None] * 3]


def test_the_guard_goes_with_its_module(real_ranks):
    gc.collect()  # of other tests
    before = len(listeners)

    def body(rank, attach):
        gs = attach(mlp())
        assert len(listeners) > before
        gs.close()

    real_ranks(1, body)
    gc.collect()
    assert len(listeners) == before


def test_guards_may_come_and_go_while_an_optimizer_steps():
    class Found:
        def holds_any(self, groups):
            for guard in guards:
                guard.close()
            guards.append(OptimizerGuard(Found(), lambda: False, str))
            return False

    guards = [OptimizerGuard(Found(), lambda: False, str) for _ in range(2)]
    sgd(mlp()).step()
    assert len(guards) == 4, "both that were there when the step began were asked"
    guards[-1].close()
