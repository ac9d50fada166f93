"""One rank of the live tests of early launches of DTensors: real processes, Gloo, a daemon with a bucket per tensor.

Every case trains a model with and without overlap, and writes what is compared: a digest of each step's gradients, to
the bit. Started by test_torch_overlap.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from live_cases import run_cases
from live_rank import mesh_of
from synced_rank import Case, Model, backward, sequence_parallel, sharded, tensor_parallel
from torch import nn

import gradsync
import gradsync.torch as gst

STEPS = 9
WRITTEN = "blocks.0.inner.up.weight"
WRITER = 1  # the rank that writes where it should not


def fsdp2(**more: Any) -> Case:
    mesh = mesh_of(dp_replicate=2, dp_shard=2)
    return Case(mesh, sharded(Model(), mesh["dp_shard"]), dist.get_rank(), 4, **more)


def tp(**more: Any) -> Case:
    mesh = mesh_of(dp=2, tp=2)
    return Case(mesh, tensor_parallel(Model(), mesh["tp"]), mesh.get_local_rank("dp"), 2, **more)


def tp_sp(**more: Any) -> Case:
    mesh = mesh_of(dp=2, tp=2)
    return Case(mesh, sequence_parallel(Model(), mesh["tp"]), mesh.get_local_rank("dp"), 2, **more)


def checkpointed(**more: Any) -> Case:
    mesh = mesh_of(dp=2, tp=2)
    model = sequence_parallel(Model(checkpointed=True), mesh["tp"])
    return Case(mesh, model, mesh.get_local_rank("dp"), 2, **more)


def digest(model: nn.Module) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    for name, parameter in model.named_parameters():
        hashed.update(name.encode())
        if parameter.grad is not None:
            local = getattr(parameter.grad, "_local_tensor", parameter.grad)
            hashed.update(local.contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def train(
    name: str, case: Case, plant: Callable[[nn.Module, int], None] | None = None, **options: Any
) -> dict[str, Any]:
    """`plant` is called before each step's backward, with the step, to plant a fault."""
    found: dict[str, Any] = {"digests": [], "early": [], "divergence": 0}
    gs = gst.attach(case.model, mesh=case.mesh, job=name, accumulate=case.accumulate, **options)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    try:
        for step in range(STEPS):
            if plant is not None:
                plant(case.model, step)
            for micro in range(case.accumulate):
                backward(case.model, case, step, micro, case.data)
            report = gs.finish()
            found["divergence"] += len(report.divergence)
            found["digests"].append(digest(case.model))
            found["early"].append(gs.stats().launched_early)
            optimizer.step()
            case.model.zero_grad()
    except gradsync.GradsyncError as error:
        found["raised"] = f"{type(error).__name__}: {error}"
    found["failed"] = gs.stats().overlap_failed
    found["tensors"] = len(gs.explain()["tensors"]) if "raised" not in found else 0
    gs.close()
    return found


def both(name: str, make: Callable[..., Case], **more: Any) -> dict[str, Any]:
    return {
        "with": train(f"{name}_with", make(**more)),
        "without": train(f"{name}_without", make(**more), overlap=False),
    }


def parameter(model: nn.Module) -> nn.Parameter:
    return dict(model.named_parameters())[WRITTEN]


def double(parameter: torch.Tensor) -> None:
    """A write that no version tells of."""
    torch._foreach_mul_([parameter.grad], 2.0)


def from_the_beginning(model: nn.Module, step: int) -> None:
    if step == 0 and dist.get_rank() == WRITER:
        parameter(model).register_post_accumulate_grad_hook(double)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{kind.__name__: (lambda kind=kind: both(kind.__name__, kind)) for kind in (fsdp2, tp, tp_sp)},
    "fsdp2_2": lambda: both("fsdp2_2", fsdp2, accumulate=2),
    "tp_sp_2": lambda: both("tp_sp_2", tp_sp, accumulate=2, zero="zeros"),
    "checkpointed": lambda: both("checkpointed", checkpointed, accumulate=2, losses=2),
    "written": lambda: {
        "with": train("written_with", tp_sp(), from_the_beginning),
        "without": train("written_without", tp_sp(), from_the_beginning, overlap=False),
    },
}


if __name__ == "__main__":
    run_cases("overlap", CASES)
