"""What is declared of DTensor and plain parameters: one process plays every rank, with a process group that is none.

The truth is what each rank really holds: parameters are numbered, so that the numbers in a rank's memory are its part.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).parents[3]))

from reference.cut import local_indices
from reference.declare import Declared
from reference.program import merge
from reference.world import Logical, Rule, World

import gradsync
from gradsync.errors import UsageError
from gradsync.torch import Experts, ModuleRefused, Sharded
from gradsync.torch._mesh_axes import job_meshes
from gradsync.torch._model_parts import pipeline_axis, tied_ids, trainable_parameters
from gradsync.torch._placed import Placer, local_tensor

Axes = dict[str, int]


@contextmanager
def as_rank(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def numbered(model: nn.Module) -> nn.Module:
    """Every element has a value of its own."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel(), dtype=parameter.dtype).view(parameter.shape))
    return model


def net(width: int = 8) -> nn.Module:
    return numbered(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width, bias=False)))


def world_mesh(axes: Axes) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def declare(mesh: object, model: object, rank: int, world_size: int, **options: object) -> list[gradsync.Tensor]:
    meshes = job_meshes(mesh, rank, world_size)
    pp = pipeline_axis(options.get("pp"), meshes[0])
    rules = [*options.get("ep", ()), *options.get("cut", ())]
    placer = Placer(meshes, pp, rules, tied_ids(options.get("tied", ())), True)
    named = trainable_parameters(model)
    placer.check(named)
    return placer.place_all(named, [None] * len(named))


def every_rank(
    axes: Axes, build: Callable[[int, DeviceMesh], nn.Module], **options: object
) -> list[tuple[list[gradsync.Tensor], list[torch.Tensor]]]:
    """Per rank: what is declared, and what is held."""
    size = math.prod(axes.values())
    found = []
    for rank in range(size):
        with as_rank(rank, size):
            mesh = world_mesh(axes)
            model = build(rank, mesh)
            tensors = declare(options.get("meshes", lambda m: m)(mesh), model, rank, size, **options)
            found.append((tensors, [local_tensor(p).clone() for p in trainable_parameters(model).values()]))
    return found


def rules_of(tensor: gradsync.Tensor) -> tuple[Rule, ...]:
    rules = []
    for key, placement in tensor.placements.items():
        axes = (key,) if isinstance(key, str) else key
        if isinstance(placement, gradsync.Shard):
            rules.append(Rule(axes, "shard", dim=placement.dim))
        elif isinstance(placement, gradsync.Only):
            rules.append(Rule(axes, "only", at=placement.at))
        else:
            rules.append(Rule(axes, "replicate"))
    return tuple(rules)


def check_held(axes: Axes, found: list[tuple[list[gradsync.Tensor], list[torch.Tensor]]]) -> None:
    """Each rank holds just the elements that its declaration names, and together they are the whole."""
    meshes = {tensor.mesh: axes for tensors, _ in found for tensor in tensors}
    world = World(meshes=meshes, tensors=(), values=())
    declared = [
        [
            Declared(t.name, t.shape, t.local_shape, None, t.dtype, t.mesh, rules_of(t), t.split_order, tied=t.tied)
            for t in tensors
        ]
        for tensors, _ in found
    ]
    merge(world, declared)  # tiles, or raises
    for rank, (tensors, held) in enumerate(found):
        for tensor, local in zip(tensors, held, strict=True):
            logical = Logical(tensor.name, tensor.shape, rules_of(tensor), tensor.mesh, split_order=tensor.split_order)
            indices = local_indices(world, logical, rank)
            whole = torch.arange(math.prod(tensor.shape)).view(tensor.shape)
            assert torch.equal(whole[tuple(torch.meshgrid(*indices, indexing="ij"))], local.long()), (rank, tensor)


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for module in model:
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}, src_data_rank=None)


def kinds(tensor: gradsync.Tensor) -> dict[object, object]:
    return dict(tensor.placements)


def test_plain_parameters_are_replicated() -> None:
    found = every_rank({"dp": 3}, lambda rank, mesh: net())
    check_held({"dp": 3}, found)
    assert kinds(found[1][0][0]) == {"dp": gradsync.Replicate()}
    assert found[0][0][0].weight_fingerprint == found[2][0][0].weight_fingerprint
    assert str(found[0][0][0].weight_fingerprint).startswith("weights=multilinear64:")


@pytest.mark.parametrize("width", [8, 7, 2])
def test_fsdp2(width: int) -> None:
    axes = {"dp_shard": 3}
    found = every_rank(axes, lambda rank, mesh: sharded(net(width), mesh))
    check_held(axes, found)
    assert kinds(found[0][0][0]) == {"dp_shard": gradsync.Shard(0)}
    assert found[0][0][0].split_order is None


def test_hsdp() -> None:
    axes = {"dp_replicate": 2, "dp_shard": 2}
    found = every_rank(axes, lambda rank, mesh: sharded(net(), mesh))
    check_held(axes, found)
    assert kinds(found[0][0][0]) == {"dp_replicate": gradsync.Replicate(), "dp_shard": gradsync.Shard(0)}


def test_tensor_parallel() -> None:
    axes = {"tp": 2}
    found = every_rank(axes, lambda rank, mesh: tensor_parallel(net(), mesh))
    check_held(axes, found)
    placements = {tensor.name: kinds(tensor)["tp"] for tensor in found[0][0]}
    assert placements == {"0.weight": gradsync.Shard(0), "0.bias": gradsync.Shard(0), "2.weight": gradsync.Shard(1)}


@pytest.mark.parametrize("width", [8, 7, 5, 3])
@pytest.mark.parametrize("shard", [2, 3])
def test_fsdp2_over_tensor_parallel_nests_as_it_is_held(width: int, shard: int) -> None:
    """Uneven widths too, where DTensor's own arithmetic says something else than what is held."""
    axes = {"dp_shard": shard, "tp": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        return sharded(tensor_parallel(net(width), mesh["tp"]), mesh["dp_shard"])

    found = every_rank(axes, build)
    check_held(axes, found)
    weight = found[0][0][0]
    assert weight.split_order == ("tp", "dp_shard")


def test_hsdp_over_tensor_parallel() -> None:
    axes = {"pp": 1, "dp_replicate": 2, "dp_shard": 2, "tp": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        return sharded(tensor_parallel(net(), mesh["tp"]), mesh["dp_replicate", "dp_shard"])

    found = every_rank(axes, build)
    check_held(axes, found)
    assert "pp" not in kinds(found[0][0][0])


def test_a_flattened_dim_is_the_axes_it_was_made_of() -> None:
    axes = {"dp_shard": 2, "cp": 2, "tp": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        flat = mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
        return sharded(tensor_parallel(net(), mesh["tp"]), flat)

    found = every_rank(axes, build)
    check_held(axes, found)
    weight = found[0][0][0]
    assert kinds(weight) == {("dp_shard", "cp"): gradsync.Shard(0), "tp": gradsync.Shard(0)}
    assert weight.split_order == ("tp", "dp_shard", "cp")


def test_pipeline_stages_exist_at_their_coordinate_alone() -> None:
    axes = {"pp": 2, "dp_shard": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        stage = nn.Sequential(OrderedDict({f"layers{mesh['pp'].get_local_rank()}": nn.Linear(4, 4)}))
        return fully_shard(numbered(stage), mesh=mesh["dp_shard"])

    found = every_rank(axes, build)
    check_held(axes, found)
    assert [tensors[0].name for tensors, _ in found] == ["layers0.weight"] * 2 + ["layers1.weight"] * 2
    assert kinds(found[3][0][0]) == {"dp_shard": gradsync.Shard(0), "pp": gradsync.Only(1)}


def test_the_pipeline_axis_may_have_any_name_or_be_a_mesh() -> None:
    with as_rank(0, 4):
        mesh = world_mesh({"stages": 2, "dp": 2})
        for pp in ("stages", mesh["stages"]):
            tensor, *_ = declare(mesh, net(), 0, 4, pp=pp)
            assert kinds(tensor)["stages"] == gradsync.Only(0)
        with pytest.raises(UsageError, match="stages"):
            declare(mesh, net(), 0, 4, pp="pp")


def experts(rank: int, mesh: DeviceMesh) -> nn.Module:
    """Two of four experts, as a slice of a stack; the router is on every rank."""
    model = nn.Module()
    model.router = nn.Parameter(torch.arange(12.0).view(4, 3))
    model.experts = nn.Parameter(torch.arange(4 * 3 * 3.0).view(4, 3, 3).chunk(2)[mesh["ep"].get_local_rank()].clone())
    return model


@pytest.mark.parametrize("dp", [1, 2])
def test_experts_as_a_slice_of_a_stack(dp: int) -> None:
    axes = {"dp": dp, "ep": 2}
    found = every_rank(axes, experts, ep=[Experts("experts*", "slice")])
    check_held(axes, found)
    stack = found[0][0][1]
    assert stack.shape == (4, 3, 3)
    assert kinds(stack)["ep"] == gradsync.Shard(0)


def test_experts_as_a_slice_that_fsdp2_sharded_further() -> None:
    axes = {"dp_shard": 2, "ep": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        return fully_shard(experts(rank, mesh), mesh=mesh["dp_shard"])

    found = every_rank(axes, build, ep=[Experts("experts*", "slice")])
    check_held(axes, found)
    assert found[0][0][1].split_order == ("ep", "dp_shard")


def test_experts_of_their_own_exist_at_their_coordinate() -> None:
    axes = {"dp": 2, "ep": 2}
    found = every_rank(axes, lambda rank, mesh: net(), ep=[Experts("2.*", "own")])
    check_held(axes, found)
    assert kinds(found[1][0][2]) == {"ep": gradsync.Only(1), "dp": gradsync.Replicate()}
    assert kinds(found[1][0][0]) == {"dp": gradsync.Replicate(), "ep": gradsync.Replicate()}


def cut_by_hand(rank: int, mesh: DeviceMesh) -> nn.Module:
    """A column and a row of tensor parallelism in plain tensors, and a norm weight that is whole."""
    at, size = mesh["tp"].get_local_rank(), mesh["tp"].size()
    model = nn.Module()
    model.w1 = nn.Parameter(torch.arange(24.0).view(6, 4).chunk(size, 0)[at].clone())
    model.w2 = nn.Parameter(torch.arange(24.0).view(4, 6).chunk(size, 1)[at].clone())
    model.norm = nn.Parameter(torch.arange(4.0))
    return model


@pytest.mark.parametrize("axes", [{"tp": 2}, {"tp": 3}, {"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}, {"dp": 2, "tp": 1}])
def test_plain_tensors_that_are_cut_by_hand(axes: Axes) -> None:
    found = every_rank(axes, cut_by_hand, cut=[Sharded("w1", 0, "tp"), Sharded("*2", dim=1, axis="tp")])
    check_held(axes, found)
    w1, w2, norm = found[0][0]
    assert (w1.shape, w2.shape) == ((6, 4), (4, 6))
    if axes["tp"] > 1:
        assert (kinds(w1)["tp"], kinds(w2)["tp"]) == (gradsync.Shard(0), gradsync.Shard(1))
        assert kinds(norm)["tp"] == gradsync.Replicate()


def test_what_is_cut_by_hand_may_be_sharded_further() -> None:
    axes = {"dp_shard": 2, "tp": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        return fully_shard(cut_by_hand(rank, mesh), mesh=mesh["dp_shard"])

    found = every_rank(axes, build, cut=[Sharded("w1", 0, "tp"), Sharded("w2", 1, "tp")])
    check_held(axes, found)
    assert [tensor.split_order for tensor in found[0][0]] == [("tp", "dp_shard"), None, None]


def test_what_is_cut_twice_by_hand_nests_in_the_order_of_the_rules() -> None:
    axes = {"a": 2, "b": 2, "ep": 2}

    def build(rank: int, mesh: DeviceMesh) -> nn.Module:
        at = [mesh[axis].get_local_rank() for axis in axes]
        cut = torch.arange(32.0).view(8, 4).chunk(2)[at[2]].chunk(2)[at[1]].chunk(2, 1)[at[0]]
        return nn.ParameterDict({"w": nn.Parameter(cut.clone())})

    rules = [Sharded("w", 0, "b"), Sharded("w", 1, "a")]
    found = every_rank(axes, build, ep=[Experts("w", "slice"), Experts("*", "own")], cut=rules)
    check_held(axes, found)
    assert found[0][0][0].split_order == ("ep", "b", "a")


def test_cuts_by_hand_that_cannot_be_are_refused_by_name() -> None:
    with as_rank(0, 4):
        mesh = world_mesh({"dp": 2, "tp": 2})
        model = cut_by_hand(0, mesh)
        for rule, message in (
            (Sharded("w1", 2, "tp"), r"'w1': it is of shape \(3, 4\), without a dim 2 for Sharded\('w1', dim=2"),
            (Sharded("w1", 0, "tpp"), r"Sharded\('w1', .*no mesh has axis 'tpp'; meshes are mesh {'dp': 2, 'tp': 2}"),
            (Sharded("w1", 0, "tp", "dense"), r"no mesh 'dense' has axis 'tp'"),
            (Sharded("w9", 0, "tp"), r"Sharded\('w9', .*no parameter of this rank has such a name; .*'w1', 'w2'"),
        ):
            with pytest.raises(UsageError, match=message):
                declare(mesh, model, 0, 4, cut=[rule])
        with pytest.raises(ModuleRefused, match="placed along tp already, as a DTensor or by another rule"):
            declare(mesh, model, 0, 4, cut=[Sharded("w1", 0, "tp"), Sharded("*1", 1, "tp")])
        with pytest.raises(ModuleRefused, match="placed along tp already"):
            declare(mesh, tensor_parallel(net(), mesh["tp"]), 0, 4, cut=[Sharded("0.*", 0, "tp")])
        stages = world_mesh({"pp": 2, "tp": 2})
        declare(stages, model, 0, 4, pp="pp", cut=[Sharded("w1", 0, "tp"), Sharded("w9", 0, "tp")])
    with pytest.raises(UsageError, match=r"Sharded\('w1', dim=-1\): dim counts from 0"):
        Sharded("w1", -1, "tp")


def test_experts_as_dtensors_on_a_mesh_of_their_own() -> None:
    dense = {"dp_shard": 4}
    size = 4
    for rank in range(size):
        with as_rank(rank, size):
            meshes = {"dense": world_mesh(dense), "expert": world_mesh({"efsdp": 2, "ep": 2})}
            model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "w": nn.ParameterDict()})
            model["w"]["w"] = nn.Parameter(
                DTensor.from_local(torch.ones(1, 2, 3), meshes["expert"], [Shard(1), Shard(0)])
            )
            fully_shard(model["a"], mesh=meshes["dense"])
            a, w = declare(meshes, model, rank, size)
            assert (a.mesh, kinds(a)) == ("dense", {"dp_shard": gradsync.Shard(0)})
            assert (w.mesh, kinds(w)) == ("expert", {"efsdp": gradsync.Shard(1), "ep": gradsync.Shard(0)})
            assert (w.shape, w.local_shape) == ((2, 4, 3), (1, 2, 3))


def test_one_parameter_under_two_names_is_declared_once() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    tensors = declare({"dp": 1}, nn.Sequential(first, second), 0, 1)
    assert [tensor.name for tensor in tensors] == ["0.weight"]


def test_weights_tied_across_stages_are_named_by_the_caller() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    tensors = declare({"pp": 1}, model, 0, 1, tied=[("embed.weight", "head.weight")])
    assert [tensor.tied for tensor in tensors] == ["embed.weight", "embed.weight"]
    with pytest.raises(UsageError, match="groups"):
        tied_ids(["embed.weight"])


def test_parts_of_one_rank_may_share_names_and_be_none_at_all() -> None:
    part = [nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)]
    assert [t.name for t in declare({"dp": 1}, part, 0, 1)] == ["weight", "parts.1.weight"]
    assert declare({"dp": 1}, [], 0, 1) == []


def test_frozen_parameters_are_not_declared() -> None:
    model = net()
    model[0].weight.requires_grad = False
    assert [t.name for t in declare({"dp": 1}, model, 0, 1)] == ["0.bias", "2.weight"]


def test_what_cannot_be_placed_is_refused_by_name() -> None:
    with as_rank(0, 4):
        mesh = world_mesh({"dp": 2, "tp": 2})
        partial = nn.ParameterDict(
            {"w": nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Partial(), Replicate()]))}
        )
        with pytest.raises(ModuleRefused, match=r"'w'.*\(sum\)"):
            declare(mesh, partial, 0, 4)
        other = DeviceMesh("cpu", torch.tensor([0, 3]), mesh_dim_names=("x",))
        crooked = nn.ParameterDict({"w": nn.Parameter(DTensor.from_local(torch.ones(2), other, [Replicate()]))})
        with pytest.raises(ModuleRefused, match=r"'w'.*axes"):
            declare(mesh, crooked, 0, 4)
        with pytest.raises(UsageError, match="slice"):
            declare(mesh["tp"], net(), 0, 4)
        with pytest.raises(UsageError, match="4"):
            declare({"dp": 2}, net(), 0, 4)


def test_meshes_of_every_order_are_read_from_their_ranks() -> None:
    for order in itertools.permutations(["a", "b", "c"]):
        with as_rank(5, 24):
            mesh = world_mesh({"a": 2, "b": 3, "c": 4})
            job_mesh = job_meshes(mesh, 5, 24)[0]
            ranks = mesh.mesh.permute(*("abc".index(axis) for axis in order))
            view = DeviceMesh("cpu", ranks, mesh_dim_names=order, _init_backend=False)
            assert job_mesh.dims_of(view) == [(axis,) for axis in order]
            flat = DeviceMesh("cpu", ranks.flatten(), mesh_dim_names=("all",), _init_backend=False)
            assert job_mesh.dims_of(flat) == [order]
