"""When buckets of DTensors are launched early, and what a write after the launch comes to; one rank of one process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from loopback import LoopbackGrads
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from gradsync.torch import LateGradient
from gradsync.torch._synced._trials import Trials

NAMES = ["0.weight", "0.bias", "2.weight"]
LEARNT = 4  # steps until a bucket may go: the first, and three trials


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


def model_of_dtensors() -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, mesh["tp"], plan, src_data_rank=None), mesh


def backward(model: nn.Module, step: int = 0) -> None:
    model(torch.full((2, 3), 1.0 + step)).square().sum().backward()


class Attached:
    """A model of DTensors after as many steps as its buckets need to be launched early."""

    def __init__(self, attach: Callable[..., Any], steps: int = LEARNT, **options: Any) -> None:
        self.model, mesh = model_of_dtensors()
        self.gs = attach(self.model, mesh=mesh, **options)
        for step in range(steps):
            self.step(step)

    def step(self, step: int = 0) -> None:
        backward(self.model, step)
        self.gs.finish()
        self.model.zero_grad()

    @property
    def weight(self) -> nn.Parameter:
        return self.model[0].weight


def test_a_bucket_goes_early_after_three_trials(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> list[int]:
        found, early = Attached(attach, 0), []
        for step in range(7):
            found.step(step)
            early.append(found.gs.stats().launched_early)
        return early

    (early,) = ranks(1, body)
    assert early[:LEARNT] == [0] * LEARNT
    each = early[LEARNT]
    assert each > 0
    assert early[LEARNT:] == [each, 2 * each, 3 * each]


def test_overlap_can_be_forbidden(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> int:
        return Attached(attach, 7, overlap=False).gs.stats().launched_early

    assert ranks(1, body) == [0]


@pytest.mark.parametrize("times", [2.0, 1.0])
def test_a_hook_that_writes_is_named_and_its_step_is_right(
    ranks: Any, times: float, caplog: pytest.LogCaptureFixture
) -> None:
    """With 2 the bits differ; with 1, as of a clip that clips nothing yet, the version alone does."""

    def multiply(parameter: torch.Tensor) -> None:
        if times == 1.0:
            parameter.grad.mul_(times)
        else:
            torch._foreach_mul_([parameter.grad], times)

    def body(rank: int, attach: Any) -> None:
        found = Attached(attach, 0)
        found.weight.register_post_accumulate_grad_hook(multiply)
        with torch.enable_grad():
            reference, _ = model_of_dtensors()
        for step in range(7):
            backward(found.model, step)
            backward(reference, step)
            found.gs.finish()
            assert torch.equal(found.weight.grad.to_local(), reference[0].weight.grad.to_local() * times)
            found.model.zero_grad()
            reference.zero_grad()
        stats = found.gs.stats()
        assert stats.launched_early == 0
        assert stats.overlap_failed.startswith("'0.weight' was changed after its last hook by ")
        assert "multiply, registered after attach()" in stats.overlap_failed

    with caplog.at_level(logging.WARNING, "gradsync.torch"):
        ranks(1, body)
    assert sum("'0.weight' was changed" in record.message for record in caplog.records) == 1


def test_a_gradient_that_is_exchanged_in_a_trial_ends_overlap(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> tuple[int, str]:
        found = Attached(attach, 0)
        for step in range(6):
            backward(found.model, step)
            with torch.no_grad():
                found.weight.grad = found.weight.grad.clone()
            found.gs.finish()
            found.model.zero_grad()
        stats = found.gs.stats()
        return stats.launched_early, stats.overlap_failed

    assert ranks(1, body) == [(0, "'0.weight' was changed after its last hook")]


WRITES: dict[str, Callable[[Any], object]] = {
    "in place": lambda g: g.mul_(2),
    "foreach": lambda g: torch._foreach_mul_([g], 2.0),
    "foreach behind another": lambda g: torch._foreach_mul_([g.clone(), g], 2.0),
    "data": lambda g: g.data.mul_(2),
    "foreach of data": lambda g: torch._foreach_mul_([g.data], 2.0),
    "detached": lambda g: torch._foreach_mul_([g.detach()], 2.0),
    "view": lambda g: torch._foreach_mul_([g.view(-1)], 2.0),
    "chunk": lambda g: torch._foreach_mul_([torch.chunk(g, 2, 1)[0]], 2.0),
    "local": lambda g: g.to_local().mul_(2),
    "foreach of local": lambda g: torch._foreach_mul_([g.to_local()], 2.0),
    "what it is made of": lambda g: g._local_tensor.mul_(2),
    "out": lambda g: torch.mul(g, 2, out=g),
    "zeros": lambda g: torch._foreach_zero_([g]),
    "unscaled": lambda g: torch._amp_foreach_non_finite_check_and_unscale_([g], torch.zeros(()), torch.tensor(0.5)),
}


@pytest.mark.parametrize("kept", [False, True], ids=["p.grad", "kept since a hook"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_after_the_launch_is_refused(real_ranks: Any, write: str, kept: bool) -> None:
    def body(rank: int, attach: Any) -> None:
        found = Attached(attach)
        held: list[Any] = []
        found.weight.register_post_accumulate_grad_hook(lambda p: held.append(p.grad))
        backward(found.model)
        gradient = held[0] if kept else found.weight.grad

        def write_and_finish() -> None:
            WRITES[write](gradient)
            found.gs.finish()

        with pytest.raises(LateGradient, match=r"'0\.weight'"), torch.no_grad():
            write_and_finish()

    real_ranks(1, body)


def test_a_second_backward_after_the_launch_is_refused(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> None:
        found = Attached(attach)
        backward(found.model)
        with pytest.raises(LateGradient):
            backward(found.model)

    ranks(1, body)


def test_what_was_launched_may_be_read_and_written_when_the_step_is_done(ranks: Any) -> None:
    def body(rank: int, attach: Any) -> None:
        found = Attached(attach)
        backward(found.model)
        gradient: Any = found.weight.grad
        total = gradient.clone()
        with torch.no_grad():
            total.add_(gradient)
            torch._foreach_norm([gradient, total])
        assert type(total) is DTensor
        assert gradient.isfinite().all()
        found.gs.finish()
        assert type(found.weight.grad) is DTensor
        with torch.no_grad():
            torch._foreach_mul_([gradient, found.weight.grad], 0.5)  # also one that a script kept
        found.gs.close()

    ranks(1, body)


def test_plain_memory_written_later_is_found_in_a_checked_step(ranks_at: Any, monkeypatch: Any) -> None:
    """The one kind of write that nothing tells of, while the bucket that is drawn waits."""
    monkeypatch.setattr(LoopbackGrads, "BUCKET_TENSORS", 8)
    monkeypatch.delenv("GRADSYNC_MODE", raising=False)

    def body(rank: int, attach: Any) -> None:
        found = Attached(attach)
        found.gs._grads.check = True  # as the daemon says of the step after this one
        found.step()
        before = found.gs.stats().launched_early
        backward(found.model)
        found.weight.grad._local_tensor.data.mul_(2)
        found.gs.finish()
        stats = found.gs.stats()
        assert stats.launched_early == before
        assert stats.overlap_failed == "'0.weight' was changed after its last hook"

    ranks_at(None)(1, body)


def trials(checked: list[bool], copied: tuple[int, ...] = ()) -> tuple[Trials, list[torch.Tensor]]:
    """There are three buckets of one tensor each, and the first has no DTensor."""
    memory = [torch.arange(3.0), torch.arange(4.0), torch.empty(0)]
    found: Any = SimpleNamespace(names=["a", "b", "c"], parameters=memory)
    return Trials(found, {1: [1], 2: [2]}, memory, copied, 3, lambda: checked[0]), memory


def step(tried: Trials, stable: tuple[int, ...] = (1, 2)) -> list[int]:
    """A step with the hooks of all tensors; the buckets that were launched."""
    launched = []
    for bucket in range(3):
        if tried.tried[bucket]:
            tried.note(bucket)
        if not tried.hold(bucket):
            launched.append(bucket)
    tried.judge(())
    tried.learn(stable)
    tried.begin(7)
    return launched


def test_a_trial_counts_where_all_ranks_were_alike() -> None:
    tried, _ = trials([False])
    assert [step(tried, (1,)) for _ in range(3)] == [[0]] * 3
    assert step(tried) == [0, 1]
    assert step(tried) == [0, 1]
    assert step(tried) == [0, 1]
    assert step(tried) == [0, 1, 2]


def test_one_bucket_waits_in_a_checked_step_and_those_of_copies_do() -> None:
    checked = [False]
    tried, _ = trials(checked, copied=(1,))
    for _ in range(3):
        step(tried)
    assert step(tried) == [0, 1, 2]
    checked[0] = True
    assert step(tried) == [0, 2]  # nothing is drawn yet
    assert step(tried) in ([0], [0, 2])  # bucket 1 for its copies, and the one that is drawn
    checked[0] = False
    step(tried)
    assert step(tried) == [0, 1, 2]


def test_every_bucket_is_drawn_at_some_time() -> None:
    tried, _ = trials([True])
    for _ in range(3):
        step(tried)
    drawn = set()
    for number in range(20):
        tried.begin(number)
        drawn.add(tuple(tried.tried))
    assert drawn == {(False, True, False), (False, False, True)}


def test_a_rank_that_refuses_says_so_of_buckets_of_dtensors_alone() -> None:
    tried, memory = trials([False])
    assert not any(map(tried.refused, range(3)))
    tried.note(1)
    tried.hold(1)
    memory[1][0] = 5
    tried.judge(())
    assert [tried.refused(bucket) for bucket in range(3)] == [False, True, True]
    assert tried.failed == "'b' was changed after its last hook"
    tried.begin(1)
    assert step(tried) == [0]
    assert step(tried) == [0]
