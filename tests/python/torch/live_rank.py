"""One rank of the live tests: real processes, Gloo, frameworks as users have them. Started by test_torch_live.py.

Every case makes gradients, notes the exact norm of what all ranks hold together (in float64 over whole tensors), clips
by gradsync, and clips copies by torch. What was found is written to a file; nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from live_cases import run_cases
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import gradsync.torch as gst
from gradsync import Clip, ClipRaised, GradientsDiverged, GradsyncError, ZScore
from gradsync.errors import WeightsDiverged

WIDTH = 12
NORMS = [1.0, 2.0, 3.0, math.inf]
Case = Callable[[], tuple[Any, nn.Module, Any]]


class Block(nn.Module):
    """A norm, then two linear layers, with sizes that do not divide by the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 22)
        self.down = nn.Linear(22, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def blocks() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(Block(), Block())


def mesh_of(**axes: int) -> Any:
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


TENSOR_PARALLEL = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def sequence_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard

    for block in model:
        plan = {
            "": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(block, mesh, plan)
    return model


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    for block in model:
        parallelize_module(block, mesh, TENSOR_PARALLEL)
    return model


def fsdp2() -> Any:
    mesh = mesh_of(dp_shard=4)
    return mesh, sharded(blocks(), mesh), mesh["dp_shard"]


def hsdp() -> Any:
    mesh = mesh_of(dp_replicate=2, dp_shard=2)
    return mesh, sharded(blocks(), mesh), mesh


def fsdp2_tp() -> Any:
    mesh = mesh_of(dp_shard=2, tp=2)
    model = tensor_parallel(blocks(), mesh["tp"])
    return mesh, sharded(model, mesh["dp_shard"]), mesh["dp_shard"]


def fsdp2_tp_sp() -> Any:
    mesh = mesh_of(dp_shard=2, tp=2)
    model = sequence_parallel(blocks(), mesh["tp"])
    return mesh, sharded(model, mesh["dp_shard"]), mesh["dp_shard"]


def tp_sp() -> Any:
    mesh = mesh_of(dp_replicate=2, tp=2)
    return mesh, sequence_parallel(blocks(), mesh["tp"]), None


def backward(model: nn.Module, data_rank: int, factor: float) -> None:
    torch.manual_seed(100 + data_rank)
    x = torch.randn(2, 4, WIDTH)
    (model(x).square().mean() * factor).backward()


def whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def exact_norm(gradients: list[torch.Tensor], p: float) -> float:
    values = [abs(v) for gradient in gradients for v in gradient.double().flatten().tolist()]
    return max(values) if math.isinf(p) else math.fsum(v**p for v in values) ** (1 / p)


def compare(case: Case, **options: Any) -> dict[str, Any]:
    """Ours and torch's, on the same gradients, for every p; the gradients are made anew each time."""
    mesh, model, data = case()
    session = gst.init(model, mesh=mesh, job=case.__name__, **options)
    found = []
    for number, p in enumerate(NORMS):
        model.zero_grad()
        # On axes that replicate data, ranks must see equal data: only the mesh `data` splits it.
        coordinate = 0 if data is None else sum(c * 10**i for i, c in enumerate(data.get_coordinate()))
        backward(model, coordinate, 50.0)
        refused = ""
        if data is None:
            try:
                gst.clip_grad_norm_(model.parameters(), 0.5, p)
            except gst.GradientRefused as error:
                refused = error.name
            for parameter in model.parameters():
                if isinstance(parameter.grad, DTensor) and isinstance(parameter, DTensor):
                    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        gradients = [p.grad for p in model.parameters()]
        before = [local(g).clone() for g in gradients]
        exact = exact_norm([whole(g).clone() for g in gradients], p)
        norm = gst.clip_grad_norm_(model.parameters(), 0.5, p)
        ours = [local(g).clone() for g in gradients]
        coefficient = torch.tensor(gst.last_report().coefficient)
        for gradient, saved in zip(gradients, before, strict=True):
            local(gradient).copy_(saved)
        try:
            theirs_norm = whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5, p)).item()
            theirs = [local(g).clone() for g in gradients]
            largest = max(
                (float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True) if a.numel()), default=0
            )
        except (RuntimeError, ValueError) as error:
            theirs_norm, largest = str(error)[:80], 0.0
        report = gst.last_report()
        found.append(
            {
                "p": "inf" if math.isinf(p) else p,
                "refused": refused,
                "exact": exact,
                "ours": norm.item() if not isinstance(norm, DTensor) else norm.full_tensor().item(),
                "is_dtensor": isinstance(norm, DTensor),
                "theirs": theirs_norm,
                "multiplied": all(torch.equal(a * coefficient, b) for a, b in zip(before, ours, strict=True)),
                "largest_difference": largest,
                "elements": report.counted_elements,
                "collectives": [[list(c.axes), c.length] for c in report.scalar_collectives],
                "divergence": len(report.divergence),
                "missing": len(report.missing),
                "declares": number,
            }
        )
    explained = session.explain()
    gst.close()
    return {"cases": found, "elements": sum(p.numel() for p in blocks().parameters()), "tensors": explained["total"]}


def pipeline_and_experts() -> dict[str, Any]:
    """PP 2 × EP 2 by hand, without DTensors: stage 0 is whole on both experts' ranks, stage 1 has two experts each."""
    rank = dist.get_rank()
    stage, expert = divmod(rank, 2)
    torch.manual_seed(7)
    dense, router, stacked = torch.randn(5, 3), torch.randn(3, 4), torch.randn(4, 3, 2)
    part = nn.Module()
    if stage == 0:
        part.dense = nn.Parameter(dense.clone())
    else:
        part.router = nn.Parameter(router.clone())
        part.experts = nn.Parameter(stacked.chunk(2)[expert].clone())
    gst.init(
        [part],
        mesh={"pp": 2, "ep": 2},
        pp="pp",
        ep=gst.Experts("experts", "slice"),
        job="pipeline_and_experts",
    )
    for parameter in part.parameters():
        parameter.grad = parameter.detach() * 3
    exact = exact_norm([dense * 3, router * 3, stacked * 3], 2.0)
    ours = gst.clip_grad_norm_(part.parameters(), 1.0, pp_mesh=None, ep_enabled=True).item()
    factor = torch.tensor(gst.last_report().coefficient)
    multiplied = all(torch.equal(p.detach() * 3 * factor, p.grad) for p in part.parameters())
    # One rank without a gradient: the same calls, and the report says what is missing.
    if rank == 3:
        part.experts.grad = None
    gst.clip_grad_norm_(part.parameters(), 1.0)
    missing = [[m.tensor, list(m.ranks)] for m in gst.last_report().missing]
    # What looks like a replica and is none is found before the first step.
    refused = ""
    try:
        gst.init([part], mesh={"pp": 2, "ep": 2}, pp="pp", job="experts_forgotten")
    except GradsyncError as error:
        refused = type(error).__name__
    gst.close()
    return {"exact": exact, "ours": ours, "multiplied": multiplied, "missing": missing, "refused": refused}


def cut_by_hand() -> dict[str, Any]:
    """DP 2 × TP 2 of plain tensors; the norm of one device is that of the whole model's gradients."""
    at = dist.get_rank() % 2
    torch.manual_seed(11)
    w1, w2, scale = torch.randn(6, 4), torch.randn(4, 6), torch.randn(4)
    model = nn.Module()
    model.w1, model.w2 = nn.Parameter(w1.chunk(2, 0)[at].clone()), nn.Parameter(w2.chunk(2, 1)[at].clone())
    model.scale = nn.Parameter(scale.clone())
    cut = [gst.Sharded("w1", 0, "tp"), gst.Sharded("w2", 1, "tp")]
    gst.init(model, mesh={"dp": 2, "tp": 2}, sharded=cut, job="cut_by_hand")
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 3
    ours = gst.clip_grad_norm_(model.parameters(), 1.0).item()
    factor = torch.tensor(gst.last_report().coefficient)
    multiplied = all(torch.equal(p.detach() * 3 * factor, p.grad) for p in model.parameters())
    refused = {}
    uneven = nn.ParameterDict({"w1": nn.Parameter(torch.ones(3 - at, 4)), "w2": nn.Parameter(torch.ones(2, 2))})
    for name, part, rules in (
        ("uneven", uneven, cut),
        ("forgotten", model, cut[:1]),
        ("wrong_axis", model, [gst.Sharded("w1", 0, "dp"), cut[1]]),
        ("unmatched", model, [*cut, gst.Sharded("w3", 0, "tp")]),
    ):
        try:
            gst.init(part, mesh={"dp": 2, "tp": 2}, sharded=rules, job=f"cut_{name}")
        except GradsyncError as error:
            refused[name] = [type(error).__name__, str(error)]
    gst.close()
    return {
        "exact": exact_norm([w1 * 3, w2 * 3, scale * 3], 2.0),
        "ours": ours,
        "multiplied": multiplied,
        "refused": refused,
    }


def bfloat16() -> dict[str, Any]:
    """Where torch's norm has the precision of the gradients, ours has float32's."""
    mesh = mesh_of(dp_shard=4)
    model = sharded(blocks().to(torch.bfloat16), mesh)
    gst.init(model, mesh=mesh, job="bfloat16")
    torch.manual_seed(200 + dist.get_rank())
    (model(torch.randn(2, 4, WIDTH).bfloat16()).float().square().mean() * 50).backward()
    gradients = [p.grad for p in model.parameters()]
    exact = exact_norm([whole(g).clone() for g in gradients], 2.0)
    theirs = whole(nn.utils.get_total_norm(gradients)).item()
    ours = whole(gst.get_total_norm(gradients)).item()
    gst.close()
    return {"exact": exact, "ours": ours, "theirs": theirs}


def overflow() -> dict[str, Any]:
    """Gradients whose squares overflow float32: torch's norm is infinite and its clip makes everything zero."""
    mesh = mesh_of(dp_shard=4)
    model = sharded(blocks(), mesh)
    gst.init(model, mesh=mesh, job="overflow")
    backward(model, dist.get_rank(), 1.0)
    for parameter in model.parameters():
        local(parameter.grad).fill_(1e30)
    ours = gst.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
    after = whole(nn.utils.get_total_norm([p.grad for p in model.parameters()])).item()
    elements = sum(p.numel() for p in model.parameters())
    gst.close()
    return {"ours": ours, "exact": 1e30 * math.sqrt(elements), "after": after}


def policies() -> dict[str, Any]:
    """A threshold that follows the norms, and NaN on one rank: first zeros, then an error on every rank."""
    mesh = mesh_of(dp_shard=4)
    model = sharded(blocks(), mesh)
    clip = Clip.percentile(percentile=50, window=4, warmup=2, watch=[ZScore(warmup=2)], nonfinite="zero")
    gst.init(model, mesh=mesh, job="policies", clip=clip)
    steps = []
    for step, factor in enumerate((50.0, 40.0, 30.0, 20.0, 45.0, 60.0)):
        before = policy_gradients(model, factor, nan=step == 3)
        gst.clip_grad_norm_(model.parameters(), 1e6)
        report = gst.last_report()
        coefficient = torch.tensor(report.coefficient)
        after = [local(p.grad) for p in model.parameters()]
        steps.append(
            {
                "norm": str(report.norm),
                "threshold": report.threshold,
                "action": report.groups[0].action,
                "watched": len(report.groups[0].watch),
                "zeros": all(not gradient.any() for gradient in after),
                "multiplied": all(torch.equal(a * coefficient, b) for a, b in zip(before, after, strict=True)),
            }
        )
    gst.init(model, mesh=mesh, job="policies_raise", clip=Clip(nonfinite="raise"))
    before = policy_gradients(model, 1.0, nan=True)
    raised = ""
    try:
        gst.clip_grad_norm_(model.parameters(), 1.0)
    except ClipRaised as error:
        raised = error.group
    kept = all(
        torch.equal(a.nan_to_num(), local(p.grad).nan_to_num()) for a, p in zip(before, model.parameters(), strict=True)
    )
    policy_gradients(model, 1.0, nan=False)
    next_norm = gst.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
    gst.close()
    return {"steps": steps, "raised": raised, "kept": kept, "next_is_finite": math.isfinite(next_norm)}


def policy_gradients(model: nn.Module, factor: float, nan: bool) -> list[torch.Tensor]:
    model.zero_grad()
    backward(model, dist.get_rank(), factor)
    held = [local(p.grad) for p in model.parameters()]
    if nan and dist.get_rank() == 2:
        next(gradient for gradient in held if gradient.numel()).view(-1)[0] = math.nan
    return [gradient.clone() for gradient in held]


def weights() -> dict[str, Any]:
    """Rank 3 changes what it holds of one weight, of which only its own replicas have a copy."""
    found: dict[str, Any] = {}
    for case, name in ((hsdp, "0.up.weight"), (fsdp2_tp, "1.norm.weight"), (fsdp2_tp, "1.up.weight")):
        mesh, model, _ = case()
        gst.init(model, mesh=mesh, job=f"weights_{case.__name__}", weights_every=1, divergence="raise")
        said = []
        for step in range(3):
            if step == 2 and dist.get_rank() == 3:
                with torch.no_grad():
                    local(dict(model.named_parameters())[name])[0] += 1.0
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            try:
                gst.clip_grad_norm_(model.parameters(), 1.0)
                gst.verify_weights(100.0)
                said.append("equal")
            except WeightsDiverged as error:
                said.append([error.tensors, error.ranks])
        found[f"{case.__name__} {name}"] = said
    gst.close()
    return found


def copies() -> dict[str, Any]:
    """A bias that both ranks of a group hold: one copy of its gradient is summed, and that of rank 3 is another."""
    mesh = mesh_of(dp=2, tp=2)
    found: dict[str, Any] = {}
    for divergence in ("report", "raise"):
        model = tensor_parallel(blocks(), mesh["tp"])
        with gst.attach(model, mesh=mesh, job=f"copies_{divergence}", divergence=divergence) as gs:
            said: list[Any] = []
            for step in range(3):
                if step == 1 and dist.get_rank() == 3:
                    handle = model[0].down.bias.register_hook(lambda gradient: gradient + 1.0)
                if step == 2 and dist.get_rank() == 3:
                    handle.remove()
                backward(model, mesh.get_local_rank("dp"), 1.0)
                try:
                    report = gs.finish()
                    said.append([[one.tensor, list(one.suspects), one.what] for one in report.divergence])
                except GradientsDiverged as error:
                    said.append([list(error.tensors), all(p.grad is None for p in model.parameters())])
                model.zero_grad()
            found[divergence] = said
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{case.__name__: (lambda case=case: compare(case)) for case in (fsdp2, hsdp, fsdp2_tp, fsdp2_tp_sp, tp_sp)},
    "pipeline_and_experts": pipeline_and_experts,
    "cut_by_hand": cut_by_hand,
    "bfloat16": bfloat16,
    "overflow": overflow,
    "policies": policies,
    "weights": weights,
    "copies": copies,
}


if __name__ == "__main__":
    run_cases("live", CASES)
