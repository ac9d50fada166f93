"""Training scripts over nodes that know nothing of gradsync, for test_observe_nodes.py and test_audit_nodes.py:
`node_cases.py CASE`. Ranks are on two nodes in equal numbers; gradients are those of node_script.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
MAX_NORM = 0.5
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def inputs_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: nn.Module, clip: Callable[[int], Any]) -> None:
    """The learning rate is 0, so that every step has gradients of the same weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(STEPS):
        model(inputs_of(step, dist.get_rank())).pow(2).sum().backward()
        clip(step)
        optimizer.step()
        optimizer.zero_grad()


def sharded() -> nn.Module:
    model = model_of()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",)))
    return model


@case
def ddp() -> None:
    model = DistributedDataParallel(model_of())
    train(model, lambda _: nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))


@case
def fsdp2() -> None:
    model = sharded()
    train(model, lambda _: nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))


@case
def counts_a_shard_twice() -> None:
    """The part of rank 1 is in the sum two times, from the third step on."""
    model = sharded()

    def clip(step: int) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total: Any = nn.utils.get_total_norm(gradients)
        part = total.to_local().square() if dist.get_rank() == 1 and step >= 2 else torch.zeros(())
        dist.all_reduce(part)
        nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, (total.full_tensor().square() + part).sqrt())

    train(model, clip)


@case
def sums_shards_twice() -> None:
    model = sharded()

    def clip(_: int) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total: Any = nn.utils.get_total_norm(gradients)
        power = total.full_tensor().square()
        dist.all_reduce(power)
        nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, power.sqrt())

    train(model, clip)


@case
def rank_three_skips_the_clip() -> None:
    """From the third step on."""
    model = DistributedDataParallel(model_of())

    def clip(step: int) -> None:
        if step < 2 or dist.get_rank() != 3:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)

    train(model, clip)


@case
def rank_three_never_clips() -> None:
    model = DistributedDataParallel(model_of())

    def clip(_: int) -> None:
        if dist.get_rank() != 3:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)

    train(model, clip)


@case
def alone() -> None:
    """Without a process group."""
    model = model_of()
    model(inputs_of(0, 0)).pow(2).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)


if __name__ == "__main__":
    if sys.argv[1] != "alone":
        dist.init_process_group("gloo")
    CASES[sys.argv[1]]()
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
