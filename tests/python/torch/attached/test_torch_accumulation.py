"""Accumulation of one model with everything at once that makes hooks fire more or less often than once.

Tied weights, re-entrant checkpointing, two losses with a backward pass each, a part used in every other micro-batch, a
part never used. Gradients are compared as the optimizer finds them, with one process on the whole batch and with DDP.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script, by DDP's ranks
from live_world import DEADLINE_S, run_ranks
from models import assert_close, assert_same_bits, weights

import gradsync

WORDS, WIDTH, BLOCKS = 11, 6, 3
RANKS = 2
STEPS = 5
pytestmark = pytest.mark.timeout(DEADLINE_S + 50)  # the first test waits for DDP's ranks
Gradients = dict[str, torch.Tensor | None]


class Everything(nn.Module):
    """A small language model: the embedding is the head too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.side = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.never = nn.Linear(WIDTH, WIDTH)
        self.probe = nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.double()
        self.reentrant: bool | None = None  #: None: no checkpointing
        self.checkpoints_side = False

    def forward(self, words: torch.Tensor, uses_side: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(words)
        if uses_side:
            x = x + self._run(self.side, x, self.checkpoints_side)
        for block in self.blocks:
            x = x + self._run(block, x, True)
        return self.head(x), self.probe(x)

    def _run(self, layer: nn.Module, x: torch.Tensor, checkpoints: bool) -> torch.Tensor:
        if self.reentrant is None or not checkpoints:
            return layer(x).tanh()
        return checkpoint(lambda y: layer(y).tanh(), x, use_reentrant=self.reentrant)


def uses_side(step: int, part: int) -> bool:
    """Every other micro-batch, and not always the same ones: in every other step the last one is among them."""
    return (step + part) % 2 == 0


def losses(model: nn.Module, step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1000 * step + part)
    words, following = torch.randint(WORDS, (2, 3, 5), generator=made)
    logits, probed = model(words, uses_side(step, part))
    return cross_entropy(logits.flatten(0, 1), following.flatten()), probed.square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def found_by(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[Gradients]:
    """The gradients with which each step of the optimizer begins."""
    steps: list[Gradients] = []

    def look(*_: object) -> None:
        named = model.named_parameters()
        steps.append({name: None if p.grad is None else p.grad.detach().clone() for name, p in named})

    optimizer.register_step_pre_hook(look)
    return steps


def alone(template: nn.Module, parts: int, steps: int = STEPS) -> tuple[list[Gradients], nn.Module]:
    """One process, one backward pass over all parts."""
    model = copy.deepcopy(template)
    optimizer = sgd(model)
    found = found_by(optimizer, model)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(sum(losses(model, step, part)) for part in range(parts)) / parts).backward()
        optimizer.step()
    return found, model


def assert_equal_gradients(ours: list[Gradients], theirs: list[Gradients]) -> None:
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert {name for name, g in our.items() if g is None} == {name for name, g in their.items() if g is None}
        assert_close(*({name: g for name, g in one.items() if g is not None} for one in (our, their)))


def own(gs: Any, optimizer: torch.optim.Optimizer) -> None:
    gs.step(optimizer)


def to_none(gs: Any, optimizer: torch.optim.Optimizer) -> None:
    gs.step(optimizer, zero_grad=False)
    optimizer.zero_grad(set_to_none=True)


def to_zeros(gs: Any, optimizer: torch.optim.Optimizer) -> None:
    gs.step(optimizer, zero_grad=False)
    optimizer.zero_grad(set_to_none=False)


def by_hand(gs: Any, optimizer: torch.optim.Optimizer) -> None:
    gs.finish()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


@pytest.fixture(scope="module")
def small_buckets(daemon_binary: str) -> Iterator[str]:
    """A daemon that gives every tensor a bucket: real_daemon would put all of this model into one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", daemon_binary)
        patch.setenv("GRADSYNC_ENGINE_FIRST_BUCKET_BYTES", "1")
        patch.setenv("GRADSYNC_ENGINE_BUCKET_BYTES", "1")
        with gradsync.connect(spawn=True, timeout=60) as client:
            yield client.address


@pytest.fixture(params=["loopback", "daemon", "daemon, a bucket per tensor"])
def anyone(request: pytest.FixtureRequest, ranks_at: Callable[[str | None], Any]) -> Any:
    fixture = {"daemon": "real_daemon", "daemon, a bucket per tensor": "small_buckets"}.get(request.param)
    return ranks_at(request.getfixturevalue(fixture) if fixture else None)


def train(
    gs: Any, model: nn.Module, rank: int, accumulate: int, finish: Callable[..., None]
) -> tuple[list[Gradients], list[tuple[int, int]]]:
    """The gradients of each step, and how many buckets it launched early: before its last micro-batch, and in all."""
    optimizer = sgd(model)
    found = found_by(optimizer, model)
    launched: list[tuple[int, int]] = []
    for step in range(STEPS):
        before = gs.stats().launched_early
        until_last = 0
        for micro in range(accumulate):
            until_last = gs.stats().launched_early - before
            first, second = losses(model, step, rank * accumulate + micro)
            (first / accumulate).backward(retain_graph=True)
            (second / accumulate).backward()
        launched.append((until_last, gs.stats().launched_early - before))
        finish(gs, optimizer)
    return found, launched


@pytest.mark.parametrize("finish", [own, to_none, to_zeros, by_hand])
@pytest.mark.parametrize("accumulate", [1, 2, 8])
def test_gradients_equal_those_of_one_process(anyone, accumulate, finish):
    template = Everything()
    expected, reference = alone(template, parts=RANKS * accumulate)
    assert {name for name, g in expected[-1].items() if g is None} == {"never.weight", "never.bias"}

    def body(rank, attach):
        model = copy.deepcopy(template)
        model.reentrant = True
        with attach(model, accumulate=accumulate) as gs:
            found, launched = train(gs, model, rank, accumulate, finish)
            names = [name for name, _ in model.named_parameters()]
            buckets = [{names[i] for i in bucket.tensors} for bucket in gs._grads.buckets]
            return found, launched, buckets, weights(model)

    for found, launched, buckets, trained in (results := anyone(RANKS, body)):
        assert_equal_gradients(found, expected)
        assert_close(trained, weights(reference))
        assert_same_bits(trained, results[0][3])
        early = [sum(goes_early(bucket, step, accumulate) for bucket in buckets) for step in range(STEPS)]
        assert launched == [(0, count) for count in early]


def goes_early(bucket: set[str], step: int, accumulate: int) -> bool:
    """Once counts are known, where the ranks' are equal, and the last micro-batch brings one of its gradients."""
    of_side = {name for name in bucket if name.startswith("side.")}
    if step == 0 or any(name.startswith("never.") for name in bucket) or (of_side and accumulate == 1):
        return False
    return bucket != of_side or uses_side(step, accumulate - 1)


class Uneven(Everything):
    """A part of every other micro-batch whose re-entrant passes make the numbers of passes unequal."""

    def forward(self, words: torch.Tensor, uses_side: bool) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(words)
        if uses_side:
            x = x + self.side(x)
            x = x + self._run(self.never, x, True)
        for block in self.blocks:
            x = x + self._run(block, x, True)
        return self.head(x), self.probe(x)


@pytest.mark.parametrize("also_last", [False, True])
def test_a_part_that_makes_micro_batches_unequal_is_not_launched_before_the_last(anyone, also_last, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__],
        "uses_side",
        lambda step, part: part % 2 == 0 or (also_last and step == 3 and part % 8 == 7),
    )
    template = Uneven()
    expected, _ = alone(template, parts=RANKS * 8)

    def body(rank, attach):
        model = copy.deepcopy(template)
        model.reentrant = True
        with attach(model, accumulate=8) as gs:
            return train(gs, model, rank, 8, own)

    for found, launched in anyone(RANKS, body):
        assert_equal_gradients(found, expected)
        assert [until_last for until_last, _ in launched] == [0] * STEPS


@pytest.mark.parametrize("accumulate", [2, 8])
def test_one_bucket_of_all_is_launched_in_the_last_micro_batch(real_ranks, accumulate):
    template = Everything()
    template.never.requires_grad_(False)
    expected, _ = alone(template, parts=RANKS * accumulate)

    def body(rank, attach):
        model = copy.deepcopy(template)
        model.reentrant = True
        with attach(model, accumulate=accumulate) as gs:
            return train(gs, model, rank, accumulate, own)

    for found, launched in real_ranks(RANKS, body):
        assert_equal_gradients(found, expected)
        assert launched == [(0, 0)] + [(0, 1)] * (STEPS - 1)


@pytest.mark.parametrize("buckets", ["real_daemon", "small_buckets"])
def test_a_nan_is_found_with_the_micro_batch_in_which_its_rank_was_done(buckets, request, ranks_at):
    """Rank 1 brings it; its last step has two micro-batches of four. A first step does not know how many it has."""
    template = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

    def body(rank, attach):
        model = copy.deepcopy(template)
        found = []
        with attach(model, accumulate=4) as gs:
            for micro_batches in (4, 4, 2):
                for micro_batch in range(micro_batches if rank else 4):
                    bad = rank == 1 and micro_batch == 1
                    x = torch.full((2, WIDTH), math.nan if bad else 1.0)
                    model(x).sum().backward()
                found.append(gs.finish())
                model.zero_grad()
        return found

    for reports in ranks_at(request.getfixturevalue(buckets))(RANKS, body):
        brought = [{(i.rank, i.micro_batch) for one in report.nonfinite for i in one.inputs} for report in reports]
        assert brought == [{(1, None)}, {(1, 3)}, {(1, 1)}]
        assert {one.tensor for one in reports[1].nonfinite} >= {"0.weight", "1.weight"}


# ---- DDP
#
# It refuses most of this. Re-entrant checkpoints go with find_unused_parameters=False alone, a parameter that has no
# gradient with True alone; static_graph=True allows both, but no part that is used now and then; a second backward pass
# of one forward pass fails with each of them. What DDP takes is below: no re-entrant checkpoints, one backward pass of
# both losses, no_sync() for all micro-batches but the last.


def ddp_rank(rank: int, folder: Path) -> None:
    """One of DDP's ranks, in a process of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS)
    results = {accumulate: by_ddp(rank, accumulate) for accumulate in (1, 2, 8)}
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def by_ddp(rank: int, accumulate: int) -> list[Gradients]:
    model = Everything()
    model.reentrant = False
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = sgd(model)
    found = found_by(optimizer, model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulate):
            with wrapped.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():
                (sum(losses(wrapped, step, rank * accumulate + micro)) / accumulate).backward()
        optimizer.step()
    return found


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, list[Gradients]]]:
    folder = tmp_path_factory.mktemp("ddp")
    ranks = [str(rank) for rank in range(RANKS)]
    run_ranks(
        [[__file__, rank, str(folder)] for rank in ranks], [{**os.environ, "GLOO_SOCKET_IFNAME": "lo"}] * RANKS, folder
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("accumulate", [1, 2, 8])
def test_gradients_equal_those_of_ddp(anyone, ddp, accumulate):
    template = Everything()

    def body(rank, attach):
        model = copy.deepcopy(template)
        model.reentrant = True
        with attach(model, accumulate=accumulate) as gs:
            return train(gs, model, rank, accumulate, own)[0]

    for found, theirs in zip(anyone(RANKS, body), ddp, strict=True):
        assert_equal_gradients(found, theirs[accumulate])


if __name__ == "__main__":
    ddp_rank(int(sys.argv[1]), Path(sys.argv[2]))
