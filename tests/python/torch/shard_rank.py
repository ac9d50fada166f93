"""One rank of the live tests of `attach(shard=…)`: real processes, Gloo, AdamW that steps this rank's rows.

Every case trains the same model sharded, attached without shards, and whole in one process on all ranks' data. What
differs is written to a file. Started by test_torch_shard.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from live_cases import run_cases
from live_rank import mesh_of
from synced_rank import Case, Model, backward, difference, gradients, whole
from torch import nn
from torch.distributed.tensor import DTensor

import gradsync
import gradsync.torch as gst

STEPS = 4


class Scaled(Model):
    """With a parameter that has no dim, and one of fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.few = nn.Parameter(torch.ones(2, 11))

    def forward(self, words: torch.Tensor, rare: bool = False) -> torch.Tensor:
        return super().forward(words, rare) * self.scale + self.few.sum(0)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        getattr(value, "_local_tensor", value).nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name.startswith("exp_avg")
    )


def bits(model: nn.Module) -> list[list[int]]:
    return [p.detach().reshape(-1).view(torch.int32).tolist() for p in model.parameters()]


def train(name: str, mesh: Any, shard: str, by_hand: bool = False, **more: Any) -> dict[str, Any]:
    sharded, plain, reference = Scaled(), Scaled(), Scaled()
    cases = [Case(mesh, model, dist.get_rank(), 4, **more) for model in (sharded, plain)]
    options = {"mesh": mesh, "accumulate": cases[0].accumulate, "clip": gradsync.Clip(max_norm=0.5)}
    gs = gst.attach(sharded, job=name, shard=shard, **options)
    beside = gst.attach(plain, job=f"{name}_plain", **options)
    optimizers = [adamw(gs.parameters()), adamw(plain.parameters()), adamw(reference.parameters())]
    found: dict[str, Any] = {"same_weights": [], "same_gradients": [], "same_norm": [], "to_reference": []}
    for step in range(STEPS):
        for case in cases:
            for micro in range(case.accumulate):
                backward(case.model, case, step, micro, case.data)
        for micro in range(cases[0].accumulate):
            for part in range(4):
                backward(reference, cases[0], step, micro, part, 0.25)
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizers[2].step()
        reference.zero_grad()
        theirs = beside.finish()
        held = gradients(plain)
        ours = gs.finish() if by_hand else gs.step(optimizers[0], zero_grad=False)
        if by_hand:
            optimizers[0].step()
        shards = dict(zip((name for name, _ in sharded.named_parameters()), gs.parameters(), strict=True))
        mine = {name: None if one.grad is None else whole(one.grad).clone() for name, one in shards.items()}
        assert all(p.grad is None for p in sharded.parameters())
        assert all(isinstance(one, DTensor) for one in shards.values())
        optimizers[1].step()
        for optimizer in optimizers[:2]:
            optimizer.zero_grad(set_to_none=not by_hand)
        found["same_norm"].append(ours.norm == theirs.norm)
        found["same_gradients"].append(
            all(
                (mine[name] is None) == (one is None) and (one is None or torch.equal(mine[name], one))
                for name, one in held.items()
            )
        )
        found["same_weights"].append(bits(sharded) == bits(plain))
        found["to_reference"].append(
            difference(*({name: p.detach() for name, p in one.named_parameters()} for one in (sharded, reference)))
        )
    found["absent"] = list(ours.absent)
    found["divergence"] = len(ours.divergence)
    found["state_bytes"] = [state_bytes(optimizer) for optimizer in optimizers[:2]]
    found["elements_in_all"] = sum(p.numel() for p in sharded.parameters() if p.dim())
    found["elements"] = sum(one._local_tensor.numel() for one in gs.parameters() if one.dim())
    gs.close()
    beside.close()
    return found


def refusals() -> dict[str, Any]:
    found = {}
    mesh = mesh_of(dp=4)

    def whole_optimizer() -> None:
        model = Scaled()
        with gst.attach(model, mesh=mesh, job="whole_optimizer", shard="dp") as gs:
            gs.step(adamw(model.parameters()))

    def moved() -> None:
        model = Scaled()
        with gst.attach(model, mesh=mesh, job="moved", shard="dp") as gs:
            optimizer = adamw(gs.parameters())
            model.scale.data = model.scale.data.clone()
            gs.step(optimizer)

    def exchanged() -> None:
        model = Scaled()
        with gst.attach(model, mesh=mesh, job="exchanged", shard="dp") as gs:
            optimizer = adamw(gs.parameters())
            state = {key: value.detach().clone() for key, value in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
            gs.step(optimizer)

    def transposed() -> None:
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(3, 4).t())
        gst.attach(model, mesh=mesh, job="transposed", shard="dp")

    def early() -> None:
        model = Scaled()
        with gst.attach(model, mesh=mesh, job="early", shard="dp") as gs:
            optimizer = adamw(gs.parameters())
            backward(model, Case(mesh, model, 0, 4), 0, 0, 0)
            optimizer.step()

    def no_axis() -> None:
        gst.attach(Scaled(), mesh=mesh, job="no_axis", shard="fsdp")

    def dtensors() -> None:
        from synced_rank import tensor_parallel

        both = mesh_of(dp=2, tp=2)
        gst.attach(tensor_parallel(Model(), both["tp"]), mesh=both, job="dtensors", shard="dp")

    for refused in (whole_optimizer, moved, exchanged, transposed, early, no_axis, dtensors):
        try:
            refused()
            found[refused.__name__] = "nothing"
        except gradsync.GradsyncError as error:
            found[refused.__name__] = f"{type(error).__name__}: {error}"
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "zero2": lambda: train("zero2", mesh_of(dp=4), "dp"),
    "zero2_by_hand": lambda: train("zero2_by_hand", {"dp": 4}, "dp", by_hand=True, accumulate=2, rare=True),
    "hsdp": lambda: train("hsdp", mesh_of(dp_replicate=2, dp_shard=2), "dp_shard", accumulate=2),
    "refusals": refusals,
}


if __name__ == "__main__":
    run_cases("shard", CASES)
