"""One rank of the live tests of mode `sync`: real processes, Gloo, models as torch's frameworks make them.

Every case trains a few steps: the model under gradsync, the same one under torch's own data parallelism where torch has
one for it, and a copy of the whole model on all ranks' data in one process. What differs is written to a file; nothing
is judged here. Started by test_torch_synced.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from live_cases import run_cases
from live_rank import WIDTH, mesh_of
from live_rank import Block as Inner
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import gradsync
import gradsync.torch as gst

TOKENS, STEPS = 11, 3


class Block(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.inner = Inner()
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=True) if self.checkpointed else self.inner(x))


class Model(nn.Module):
    """An embedding of 11 words, two blocks, a head; `unused` never gets a gradient, `rare` in half of the batches."""

    def __init__(self, checkpointed: bool = False, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(checkpointed), Block(checkpointed)])
        self.rare = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.unused = nn.Parameter(torch.ones(3))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor, rare: bool = False) -> torch.Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        if rare:
            x = x + self.rare(x)
        return self.head(x)


def sharded(model: Model, mesh: Any) -> Model:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: Model, mesh: Any) -> Model:
    parallelize_module(model, mesh, {"embed": RowwiseParallel(input_layouts=Replicate())})
    for block in model.blocks:
        parallelize_module(block.inner, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sequence_parallel(model: Model, mesh: Any) -> Model:
    for block in model.blocks:
        plan = {
            "": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(block.inner, mesh, plan)
    return model


@dataclass
class Case:
    mesh: Any
    model: nn.Module
    data: int  #: which part of the data this rank sees
    parts: int
    theirs: nn.Module | None = None  #: under torch's own data parallelism
    accumulate: int = 1
    losses: int = 1
    rare: bool = False
    zero: str = "none"  #: none: by gs.step(); zeros: by hand, set_to_none=False
    last_only: bool = False  #: fully_shard reduces in the last micro-batch alone
    evaluate: bool = False
    whole: Callable[[], nn.Module] = Model
    options: dict[str, Any] = field(default_factory=dict)


def ddp(**more: Any) -> Case:
    model = Model()
    theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
    mesh = mesh_of(dp=dist.get_world_size())
    return Case(mesh, model, dist.get_rank(), dist.get_world_size(), theirs, **more)


def hsdp(**more: Any) -> Case:
    mesh = mesh_of(dp_replicate=2, dp_shard=4)
    return Case(mesh, sharded(Model(), mesh["dp_shard"]), dist.get_rank(), 8, sharded(Model(), mesh), **more)


def tp(**more: Any) -> Case:
    mesh = mesh_of(dp=4, tp=2)
    whole = more.get("whole", Model)
    return Case(mesh, tensor_parallel(whole(), mesh["tp"]), mesh.get_local_rank("dp"), 4, **more)


def tp_sp(**more: Any) -> Case:
    mesh = mesh_of(dp=4, tp=2)
    whole = more.get("whole", Model)
    return Case(mesh, sequence_parallel(whole(), mesh["tp"]), mesh.get_local_rank("dp"), 4, **more)


def fsdp2_tp(apply: Callable[[Model, Any], Model], **more: Any) -> Case:
    mesh = mesh_of(dp_replicate=2, dp_shard=2, tp=2)
    place = 2 * mesh.get_local_rank("dp_replicate") + mesh.get_local_rank("dp_shard")
    ours = sharded(apply(Model(), mesh["tp"]), mesh["dp_shard"])
    theirs = sharded(apply(Model(), mesh["tp"]), mesh["dp_replicate", "dp_shard"])
    return Case(mesh, ours, place, 4, theirs, **more)


def loss_of(model: nn.Module, case: Case, step: int, micro: int, part: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(10_000 * step + 100 * micro + part)
    words = torch.randint(TOKENS, (2, 6), generator=made)
    out = model(words, rare=case.rare and micro % 2 == 1)
    first = nn.functional.cross_entropy(out.flatten(0, 1), words.roll(1, 1).flatten()) / case.accumulate
    return [first, out.square().mean() / case.accumulate][: case.losses]


def backward(model: nn.Module, case: Case, step: int, micro: int, part: int, scale: float = 1.0) -> None:
    losses = loss_of(model, case, step, micro, part)
    for number, loss in enumerate(losses):
        (loss * scale).backward(retain_graph=number + 1 < len(losses))


def whole(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    prefix = "module." if isinstance(model, nn.parallel.DistributedDataParallel) else ""
    return {
        name.removeprefix(prefix): None if p.grad is None else whole(p.grad).detach().clone()
        for name, p in model.named_parameters()
    }


def difference(ours: dict[str, Any], theirs: dict[str, Any], zero_is_none: bool = False) -> float:
    """The largest of all tensors, relative to the tensor's norm."""
    found = 0.0
    for name, their in theirs.items():
        our = ours[name]
        if our is None or their is None:
            other = their if our is None else our
            same = our is None and (their is None or (zero_is_none and not other.any()))
            found = max(found, 0.0 if same else float("inf"))
        else:
            found = max(found, float((our.double() - their.double()).norm() / their.double().norm().clamp_min(1e-30)))
    return found


def train(name: str, case: Case) -> dict[str, Any]:
    reference = case.whole()
    gs = gst.attach(case.model, mesh=case.mesh, job=name, accumulate=case.accumulate, **case.options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=False) for m in (case.model, reference)]
    result: dict[str, Any] = {"to_reference": [], "to_torch": [], "norms": [], "placed": True}
    for step in range(STEPS):
        for micro in range(case.accumulate):
            if case.last_only:
                case.model.set_requires_gradient_sync(micro + 1 == case.accumulate)
            backward(case.model, case, step, micro, case.data)
            for part in range(case.parts):
                backward(reference, case, step, micro, part, 1 / case.parts)
        if case.theirs is not None:
            # With the weights of ours: what is compared is the gradient of one step.
            with torch.no_grad():
                for our, their in zip(case.model.parameters(), case.theirs.parameters(), strict=True):
                    local(their).copy_(local(our))
                    their.grad = None
            for micro in range(case.accumulate):
                backward(case.theirs, case, step, micro, case.data)
        if case.evaluate:
            case.model.eval()
            with torch.no_grad():
                case.model(torch.zeros(1, 6, dtype=torch.long))
            case.model.train()
        report = gs.finish()
        if case.evaluate:
            case.model.reshard()  # gathered parameters have no gradients to look at
        ours = gradients(case.model)
        result["to_reference"].append(difference(ours, gradients(reference)))
        if case.theirs is not None:
            result["to_torch"].append(difference(ours, gradients(case.theirs), zero_is_none=True))
        exact = torch.stack([g.double().norm() for g in ours.values() if g is not None]).norm().item()
        result["norms"].append([report.norm, exact])
        result["placed"] &= all(
            p.grad is None or getattr(p.grad, "placements", None) == getattr(p, "placements", None)
            for p in case.model.parameters()
        )
        for optimizer in optimizers:
            optimizer.step()
        if case.zero == "none":
            case.model.zero_grad()
        else:
            case.model.zero_grad(set_to_none=False)
        reference.zero_grad()
    weights = {name: whole(p).detach() for name, p in case.model.named_parameters()}
    result["weights"] = difference(weights, {name: p.detach() for name, p in reference.named_parameters()})
    result["divergence"] = len(report.divergence)
    result["elements"] = [report.counted_elements, sum(p.numel() for p in reference.parameters())]
    result["absent"] = list(report.absent)
    counters = gs.stats()
    result["early"] = counters.launched_early
    result["stages"] = sorted({stage_of(stage) for bucket in gs.explain()["buckets"] for stage in bucket["stages"]})
    gs.close()
    return result


def stage_of(stage: dict[str, Any]) -> str:
    return f"{stage['op']} over {'+'.join(stage['axes'])}"


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Elementwise(nn.Module):
    """A replicated DTensor used on activations that are split along its own dim: its gradient is `Shard(0)`."""

    def __init__(self, mesh: Any, features: int = 7) -> None:
        super().__init__()
        self.scale = nn.Parameter(distribute_tensor(torch.linspace(1.0, 2.0, features), mesh, [Replicate()]))


def placed_gradients() -> dict[str, Any]:
    """Gradients of every placement, one micro-batch of each, for a replicated and a sharded parameter."""
    mesh = mesh_of(dp=4, tp=2)
    part, at = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
    model = Elementwise(mesh["tp"])
    model.rows = nn.Parameter(distribute_tensor(torch.ones(7, 3), mesh["tp"], [Shard(0)]))
    found: dict[str, Any] = {}
    with gst.attach(model, mesh=mesh, job="placed_gradients") as gs:
        for kind in ("shard", "replicate", "partial", "all"):
            for one in ("shard", "replicate", "partial") if kind == "all" else (kind,):
                value = torch.arange(7.0) * (part + 1)
                if one == "shard":
                    x = distribute_tensor(value, mesh["tp"], [Shard(0)])
                    (model.scale * x).sum().full_tensor().backward()
                elif one == "replicate":
                    x = distribute_tensor(value, mesh["tp"], [Replicate()])
                    (model.scale * x).sum().full_tensor().backward()
                else:
                    local = model.scale.to_local(grad_placements=[Partial()])
                    (local * value * (0.25 if at == 0 else 0.75)).sum().backward()
            (model.rows.full_tensor() * (part + 1)).sum().backward()
            gs.finish()
            found[kind] = whole(model.scale.grad).tolist()
            found[kind + " rows"] = whole(model.rows.grad).tolist()
            model.zero_grad()
    return found


def stacked(mesh: Any) -> nn.Module:
    return nn.ParameterDict({"experts": nn.Parameter(distribute_tensor(torch.ones(2, 3), mesh["ep"], [Shard(0)]))})


def refusals() -> dict[str, Any]:
    mesh = mesh_of(dp_replicate=2, dp_shard=4)
    found = {}
    for name, make in {
        "both axes": lambda: gst.attach(sharded(Model(), mesh), mesh=mesh, job="both_axes"),
        "broadcast": lambda: gst.attach(sharded(Model(), mesh["dp_shard"]), mesh=mesh, job="b", weights="broadcast"),
        "tp nowhere": lambda: gst.attach(Model(), mesh=mesh_of(dp=4, tp=2), job="tp_nowhere"),
        "experts on the first mesh": lambda: gst.attach(stacked(mesh_of(dp=4, ep=2)), mesh_of(dp=4, ep=2), job="e"),
        "other mesh": lambda: gst.attach(sharded(Model(), mesh), mesh={"x": 4, "y": 2}, job="other_mesh"),
    }.items():
        try:
            make().close()
            found[name] = "nothing"
        except gradsync.GradsyncError as error:
            found[name] = f"{type(error).__name__}: {error}"
    # One rank starts from other weights: its shard is compared with its replica's alone.
    model = sharded(Model(), mesh["dp_shard"])
    if dist.get_rank() == 5:
        with torch.no_grad():
            model.head.weight._local_tensor.add_(1.0)
    try:
        gst.attach(model, mesh=mesh, job="diverged").close()
        found["diverged"] = "nothing"
    except gradsync.GradsyncError as error:
        found["diverged"] = f"{type(error).__name__}: {error}"
    # A gradient that is not reduced does not reach the optimizer.
    mesh = mesh_of(dp=4, tp=2)
    model = sequence_parallel(Model(), mesh["tp"])
    with gst.attach(model, mesh=mesh, job="partial_step") as gs:
        optimizer = torch.optim.AdamW(model.parameters())
        weight = model.blocks[0].inner.norm.weight
        weight.grad = DTensor.from_local(torch.ones(WIDTH), weight.device_mesh, [Partial()])
        try:
            optimizer.step()
            found["partial"] = "nothing"
        except gradsync.GradsyncError as error:
            found["partial"] = f"{type(error).__name__}: {error}"
        gs.finish()
        found["partial synced"] = str(whole(weight.grad).tolist())
    return found


def begun_again() -> dict[str, Any]:
    """A backward whose gradients were dropped, then the step done again: nothing of the first is left."""
    case = tp_sp(accumulate=2)
    reference = Model()
    with gst.attach(case.model, mesh=case.mesh, job="begun_again", accumulate=2) as gs:
        for _ in range(2):
            backward(case.model, case, 7, 0, case.data)
            case.model.zero_grad()
            for micro in range(2):
                backward(case.model, case, 0, micro, case.data)
            gs.finish()
            found = gradients(case.model)
            case.model.zero_grad()
    for micro in range(2):
        for part in range(case.parts):
            backward(reference, case, 0, micro, part, 1 / case.parts)
    return {"to_reference": difference(found, gradients(reference))}


def empty_slice() -> dict[str, Any]:
    """Nine features over tp=4 are cut 3, 3, 3, 0: the last rank has no slice, and all of its memory is zeros."""
    mesh = mesh_of(dp=2, tp=4)
    model = Elementwise(mesh["tp"], 9)
    found = []
    with gst.attach(model, mesh=mesh, job="empty_slice") as gs:
        for _ in range(3):
            x = distribute_tensor(torch.arange(9.0), mesh["tp"], [Shard(0)])
            (model.scale * x).sum().full_tensor().backward()
            gs.finish()
            found.append(whole(model.scale.grad).tolist())
            model.zero_grad()
    return {"found": found}


def value_head() -> dict[str, Any]:
    """A dim that is smaller than its axis: torch makes the gradient `Replicate`, and cannot add that to a `Shard`."""
    found: dict[str, Any] = {}
    for zero in ("none", "zeros"):
        mesh = mesh_of(dp=4, tp=2)
        torch.manual_seed(2)
        reference, model = nn.Linear(6, 1), nn.Linear(6, 1)
        model.load_state_dict(reference.state_dict())
        parallelize_module(model, mesh["tp"], ColwiseParallel(output_layouts=Replicate()))
        data = torch.randn(3, 2, 4, 5, 6, generator=torch.Generator().manual_seed(9))
        with gst.attach(model, mesh=mesh, job=f"value_head_{zero}", accumulate=2) as gs:
            worst = 0.0
            for step in range(3):
                for micro in range(2):
                    model(data[step, micro, mesh.get_local_rank("dp")]).square().mean().backward()
                    for part in range(4):
                        (reference(data[step, micro, part]).square().mean() / 4).backward()
                gs.finish()
                worst = max(worst, difference(gradients(model), gradients(reference)))
                model.zero_grad(set_to_none=zero == "none")
                reference.zero_grad()
        found[zero] = worst
    return found


def exchanged() -> dict[str, Any]:
    """Parameters that load_state_dict(assign=True) exchanges, and what Module.to() is made of afterwards."""
    found: dict[str, Any] = {}
    for name, make in {"fsdp": hsdp, "tp": tp, "moved": tp}.items():
        case, reference = make(), Model()
        with gst.attach(case.model, mesh=case.mesh, job=f"exchanged_{name}") as gs:
            if name == "moved":
                case.model.to("cpu")
            else:
                state = {key: value.detach().clone() for key, value in case.model.state_dict().items()}
                case.model.load_state_dict(state, assign=True)
            optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1, foreach=False)
            backward(case.model, case, 0, 0, case.data)
            try:
                optimizer.step()
                found[f"{name} early"] = "nothing"
            except gradsync.GradsyncError as error:
                found[f"{name} early"] = type(error).__name__
            for part in range(case.parts):
                backward(reference, case, 0, 0, part, 1 / case.parts)
            gs.finish()
            found[name] = difference(gradients(case.model), gradients(reference))
            optimizer.step()
    return found


def experts() -> dict[str, Any]:
    """Two meshes over the same ranks: an expert's gradient sums what its group sent, divided by all data ranks."""
    dense, expert = mesh_of(dp=8), mesh_of(edp=4, ep=2)
    model = nn.Module()
    model.dense = nn.Linear(3, 3, bias=False)
    model.experts = nn.Parameter(distribute_tensor(torch.ones(2, 3), expert["ep"], [Shard(0)]))
    with gst.attach(model, mesh={"dense": dense, "expert": expert}, job="experts") as gs:
        x = torch.full((1, 3), float(dist.get_rank() + 1))
        rows = model.experts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        (model.dense(x).sum() + (rows.sum(0) * x).sum()).backward()
        gs.finish()
        return {"dense": whole(model.dense.weight.grad).tolist(), "experts": whole(model.experts.grad).tolist()}


def lora() -> dict[str, Any]:
    """A frozen TP base and plain adapters: they see the same along tp, although nothing that is trained says so."""
    mesh = mesh_of(dp=4, tp=2)
    model, reference = tensor_parallel(Model(), mesh["tp"]), Model()
    for one in (model, reference):
        one.requires_grad_(False)
        torch.manual_seed(4)
        one.rare = nn.Linear(WIDTH, WIDTH)
    case = Case(mesh, model, mesh.get_local_rank("dp"), 4, rare=True)
    with gst.attach(model, mesh=mesh, job="lora") as gs:
        backward(model, case, 0, 1, case.data)
        for part in range(4):
            backward(reference, case, 0, 1, part, 0.25)
        gs.finish()
        stages = sorted({stage_of(stage) for bucket in gs.explain()["buckets"] for stage in bucket["stages"]})
        return {"to_reference": difference(gradients(model), gradients(reference)), "stages": stages}


def adapters_beside_shards() -> dict[str, Any]:
    """A frozen base that fully_shard shards, and adapters it ignores: these see different data along its axis."""
    mesh = mesh_of(dp_replicate=2, dp_shard=4)
    model, reference = Model(), Model()
    for one in (model, reference):
        one.requires_grad_(False)
        torch.manual_seed(4)
        one.rare = nn.Linear(WIDTH, WIDTH)
    fully_shard(model, mesh=mesh["dp_shard"], ignored_params=set(model.rare.parameters()))
    case = Case(mesh, model, dist.get_rank(), 8, rare=True)
    with gst.attach(model, mesh=mesh, job="adapters_beside_shards") as gs:
        backward(model, case, 0, 1, case.data)
        for part in range(8):
            backward(reference, case, 0, 1, part, 0.125)
        gs.finish()
        return {"to_reference": difference(gradients(model), gradients(reference))}


def checkpointed() -> Model:
    return Model(checkpointed=True)


TRAINED: dict[str, Callable[[], Case]] = {
    "ddp": ddp,
    "ddp_2": lambda: ddp(accumulate=2, rare=True),
    "ddp_zeros": lambda: ddp(accumulate=2, zero="zeros"),
    "hsdp": hsdp,
    "hsdp_2": lambda: hsdp(accumulate=2, evaluate=True),
    "hsdp_last_only": lambda: hsdp(accumulate=2, last_only=True),
    "hsdp_zeros": lambda: hsdp(accumulate=2, zero="zeros"),
    "tp": tp,
    "tp_8_rare_two_losses": lambda: tp(accumulate=8, rare=True, losses=2),
    "tp_checkpointed": lambda: tp(accumulate=2, whole=checkpointed),
    "tp_zeros": lambda: tp(accumulate=2, zero="zeros"),
    "tp_sp": tp_sp,
    "tp_sp_2": lambda: tp_sp(accumulate=2),
    "tp_sp_zeros": lambda: tp_sp(accumulate=2, zero="zeros"),
    "tp_sp_checkpointed": lambda: tp_sp(accumulate=2, losses=2, whole=checkpointed),
    "fsdp2_tp": lambda: fsdp2_tp(tensor_parallel),
    "fsdp2_tp_sp": lambda: fsdp2_tp(sequence_parallel, accumulate=2),
}
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: (lambda name=name, make=make: train(name, make())) for name, make in TRAINED.items()},
    "placed_gradients": placed_gradients,
    "refusals": refusals,
    "begun_again": begun_again,
    **{case.__name__: case for case in (empty_slice, value_head, exchanged, experts, lora, adapters_beside_shards)},
}


if __name__ == "__main__":
    run_cases("synced", CASES)
