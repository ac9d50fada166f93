"""attach: what is refused and how, weights at the start, modes and meshes."""

from __future__ import annotations

import copy
import io
import math
import time
from types import SimpleNamespace

import pytest
import torch
from models import assert_same_bits, loss_of, mlp, weights
from torch import nn

import gradsync
import gradsync.torch as gst
from gradsync.errors import UsageError
from gradsync.torch._module_tree import ModuleTree
from gradsync.torch._parameter_set import ParameterSet, add


def test_ranks_that_start_from_different_weights_are_named(ranks):
    def body(rank, attach):
        model = mlp()
        if rank == 1:
            with torch.no_grad():
                model[2].bias[3].copy_(-model[2].bias[3])
        attach(model)

    for outcome in ranks.outcomes(2, body):
        assert isinstance(outcome, gradsync.errors.WeightsDiverged)
        assert outcome.tensor == "2.bias"
        assert "2.bias" in str(outcome)


def test_frozen_weights_are_compared_too(ranks):
    def body(rank, attach):
        model = mlp()
        model[0].requires_grad_(False)
        if rank == 1:
            with torch.no_grad():
                model[0].weight[0, 0] = math.pi
        attach(model)

    for outcome in ranks.outcomes(2, body):
        assert isinstance(outcome, gradsync.errors.WeightsDiverged)
        assert outcome.tensor == "0.weight"


def test_skip_compares_no_weights(ranks):
    def body(rank, attach):
        model = mlp(seed=rank)
        with attach(model, weights="skip") as gs:
            loss_of(model, 0, rank).backward()
            return gs.finish().norm

    norms = ranks(2, body)
    assert norms[0] == norms[1]


class State(nn.Module):
    """Parameters and buffers of every kind."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(rank)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            name = "as_" + str(dtype).removeprefix("torch.")
            self.register_parameter(name, nn.Parameter(torch.randn(3, 5, generator=made).to(dtype)))
        self.frozen = nn.Parameter(torch.randn(4, generator=made), requires_grad=False)
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        with torch.no_grad():
            self.conv.weight.copy_(torch.randn(3, 2, 3, 3, generator=made))
            self.conv.bias.copy_(torch.tensor([-0.0, math.inf, 1e-45]) if rank == 0 else torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean.copy_(torch.randn(3, generator=made))
        self.register_buffer("as_int64", torch.randint(-(2**62), 2**62, (2, 2), generator=made))
        self.register_buffer("as_int8", torch.randint(-128, 127, (5,), generator=made).to(torch.int8))
        self.register_buffer("as_bool", torch.tensor([rank == 0, rank != 0]))
        self.register_buffer("as_complex", torch.randn(3, generator=made).to(torch.complex64), persistent=False)
        self.register_buffer("empty", torch.empty(0))


@pytest.mark.filterwarnings("ignore:module buffers:UserWarning")
def test_broadcast_gives_every_rank_all_state_of_rank_0_bit_for_bit(ranks):
    def body(rank, attach):
        model = State(rank)
        strides = model.conv.weight.stride()
        with attach(model, weights="broadcast"):
            assert model.conv.weight.stride() == strides
            return state_of(model)

    expected = state_of(State(0))
    for got in ranks(3, body):
        assert got == expected


def state_of(model: nn.Module) -> dict[str, tuple[torch.dtype, list[int]]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (t.dtype, t.detach().contiguous().reshape(-1).view(torch.uint8).tolist()) for name, t in named}


def test_training_after_broadcast_equals_training_from_those_weights(ranks):
    def body(rank, attach, **options):
        model = mlp(seed=rank if options else 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, **options) as gs:
            steps = []
            for step in range(3):
                loss_of(model, step, rank).backward()
                steps.append(gs.step(optimizer).step)
            return weights(model), steps

    broadcast = ranks(2, lambda rank, attach: body(rank, attach, weights="broadcast"))
    checked = ranks(2, body)
    assert_same_bits(broadcast[0][0], broadcast[1][0])
    assert_same_bits(broadcast[0][0], checked[0][0])
    assert broadcast[0][1] == checked[0][1] == [0, 1, 2]


def test_ranks_with_different_parameters_are_refused(ranks):
    def body(rank, attach):
        attach(nn.Linear(3, 2 + rank))

    for outcome in ranks.outcomes(2, body):
        assert isinstance(outcome, gradsync.errors.PlanMismatch)


def test_what_failed_is_said_and_not_that_leaving_failed_too(real_ranks, monkeypatch):
    def detach(job):
        raise gradsync.errors.UsageError("as of a daemon that is another one by now")

    def body(rank, attach):
        with pytest.raises(gradsync.errors.DeclareTimeout) as caught:
            attach(mlp(), timeout=0.2)
        return caught.value.ranks

    monkeypatch.setattr(gradsync.Job, "detach", detach)
    assert real_ranks(2, lambda rank, attach: body(rank, attach) if rank == 0 else None)[0] == (1,)


def test_unsynchronised_buffers_are_named_once(ranks):
    def body(rank, attach):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        model.register_buffer("mask", torch.ones(3), persistent=False)
        attach(model, weights="broadcast").close()

    outcomes = ranks.outcomes(2, body)
    for outcome in outcomes:  # warnings are errors in this suite
        assert isinstance(outcome, UserWarning)
        assert "1.running_mean, 1.running_var, 1.num_batches_tracked" in str(outcome)
        assert "mask" not in str(outcome)


# refused before anything is sent: no daemon needed


def refuse(model: nn.Module, **options) -> gst.ModuleRefused:
    with pytest.raises(gst.ModuleRefused) as refusal:
        gst.attach(model, job="refused", rank=0, world_size=1, **options)
    return refusal.value


def test_a_module_without_trainable_parameters():
    assert "no parameter that requires a gradient" in str(refuse(nn.Tanh()))
    assert "unfreeze" in str(refuse(mlp().requires_grad_(False)))


def test_a_complex_parameter():
    model = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
    assert refuse(model).name == "phase"


def test_a_lazy_parameter():
    assert "run one forward pass" in str(refuse(nn.LazyLinear(3)))


def test_a_parameter_on_another_device():
    assert "device meta" in str(refuse(nn.Linear(2, 2, device="meta")))


def test_parameters_on_two_devices():
    elsewhere = SimpleNamespace(device=torch.device("cuda", 1))
    found = ParameterSet(ModuleTree(nn.Linear(2, 2)), names=["a"], parameters=[elsewhere])
    with pytest.raises(gst.ModuleRefused, match="it is on device cpu, 'a' on cuda:1") as refused:
        add(found, "b", nn.Parameter(torch.zeros(2)))
    assert refused.value.name == "b"


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_modules_that_reduce_themselves(process_group):
    wrapped = nn.parallel.DistributedDataParallel(mlp())
    assert "DistributedDataParallel reduces" in str(refuse(wrapped))
    assert "attach the plain module" in str(refuse(nn.Sequential(wrapped)))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_sharded_module_on_one_rank(process_group, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))

    def body(rank, attach):
        model, plain = fully_shard(mlp(), mesh=mesh), mlp()
        with attach(model, mesh=mesh) as gs:
            for one in (model, plain):
                loss_of(one, 0, rank).backward()
            gs.finish()
            pairs = zip(model.parameters(), plain.parameters(), strict=True)
            return [torch.equal(ours.grad.full_tensor(), theirs.grad) for ours, theirs in pairs]

    assert ranks(1, body) == [[True] * 6]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_device_mesh_gives_the_axes(process_group, ranks):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp_replicate", "dp_shard"))

    def body(rank, attach):
        model = mlp()
        with attach(model, mesh=mesh) as gs:
            loss_of(model, 0, rank).backward()
            return gs.finish().norm

    assert ranks(1, body)[0] > 0


def test_two_axes_of_data_parallelism_are_averaged_over_both(real_ranks):
    def body(rank, attach):
        model = nn.Linear(1, 1, bias=False)
        with attach(model, mesh={"dp_replicate": 2, "dp_shard": 2}, weights="broadcast") as gs:
            (model.weight * (rank + 1)).sum().backward()
            gs.finish()
            return model.weight.grad.item()

    assert real_ranks(4, body) == [2.5] * 4


def test_a_mesh_axis_that_splits_the_model():
    with pytest.raises(UsageError, match="axis 'tp' splits the model"):
        gst.attach(mlp(), {"dp": 1, "tp": 2}, job="refused", rank=0, world_size=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": "copy"}, "weights='copy'"),
        ({"reduce": "max"}, "reduce='max'"),
        ({"clip": 1.0}, r"clip=1.0: give gradsync.Clip\(max_norm=…\)"),
        ({"clip": {"all": 1.0}}, r"clip\['all'\]=1.0"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"formula": "lax"}, "formula='lax'"),
    ],
)
def test_arguments(options, text):
    with pytest.raises(UsageError, match=text):
        gst.attach(mlp(), job="refused", rank=0, world_size=1, **options)


@pytest.mark.parametrize(("old", "new", "value"), [("mode", "formula", "lax"), ("init", "weights", "copy")])
def test_old_names_of_arguments_are_warned_of(old, new, value):
    with (
        pytest.warns(DeprecationWarning, match=rf"attach\({old}=…\) is now called {new}=") as caught,
        pytest.raises(UsageError, match=f"{new}='{value}'"),
    ):
        gst.attach(mlp(), job="refused", rank=0, world_size=1, **{old: value})
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(UsageError, match=f"old name of {new}="):
        gst.attach(mlp(), **{old: value, new: value})


def test_something_that_is_no_module():
    with pytest.raises(UsageError, match="give one nn"):
        gst.attach(list(mlp().parameters()), job="refused", rank=0, world_size=1)


# modes


@pytest.mark.parametrize("mode", ["observe", "clip"])
def test_modes_of_init_say_so(monkeypatch, mode):
    monkeypatch.setenv("GRADSYNC_MODE", mode)
    with pytest.raises(gst.ModeNotAvailable, match=r"init\(\) instead, or set it to sync"):
        gst.attach(mlp())


def test_an_unknown_mode(monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "synch")
    with pytest.raises(UsageError, match="'synch' is not a mode"):
        gst.attach(mlp())


def test_off_only_steps(monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "off")
    template = mlp()
    ours, plain = copy.deepcopy(template), copy.deepcopy(template)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, plain)]
    with gst.attach(ours, clip=gradsync.Clip(max_norm=1e-6)) as gs, gs.pause():
        for step in range(3):
            loss_of(ours, step, 0).backward()
            report = gs.step(optimizers[0])
            loss_of(plain, step, 0).backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
            assert (report.step, report.data_path, report.coefficient) == (step, "off", 1.0)
    assert_same_bits(weights(ours), weights(plain))


def test_off_with_several_ranks_warns(monkeypatch):
    monkeypatch.setenv("GRADSYNC_MODE", "off")
    with pytest.warns(UserWarning, match="drift apart") as caught:
        gst.attach(mlp(), world_size=2)
    assert [warning.filename for warning in caught] == [__file__]


# gradients of other forms


def test_a_sparse_gradient(ranks):
    def body(rank, attach):
        model = nn.Embedding(5, 2, sparse=True)
        attach(model)
        model(torch.tensor([1])).sum().backward()

    (outcome,) = ranks.outcomes(1, body)
    assert isinstance(outcome, gst.GradientRefused)
    assert "'weight'" in str(outcome)
    assert "sparse=False" in str(outcome)


def test_float32_gradients_of_bfloat16_parameters_are_refused_where_the_optimizer_would(ranks):
    def body(rank, attach):
        model = mlp(dtype=torch.bfloat16)
        for parameter in model.parameters():
            parameter.grad_dtype = torch.float32
        with attach(model) as gs:
            loss_of(model, 0, rank, torch.bfloat16).backward()
            assert model[0].weight.grad.dtype == torch.float32
            before = weights(model)
            with pytest.raises(gst.ParameterChanged, match=r"'0\.weight'.*AdamW cannot step"):
                gs.step(torch.optim.AdamW(model.parameters()))
            assert_same_bits(weights(model), before)
            gs.step(torch.optim.SGD(model.parameters(), lr=0.1))
            return any(not torch.equal(weights(model)[name], before[name]) for name in before)

    assert ranks(1, body) == [True]


def test_a_parameter_converted_after_attach_is_refused(ranks):
    def body(rank, attach):
        model = mlp(dtype=torch.float32)
        with attach(model):
            model.double()
            loss_of(model, 0, rank).backward()

    (outcome,) = ranks.outcomes(1, body)
    assert isinstance(outcome, gst.GradientRefused)
    assert "attach again" in str(outcome)


# leaving


def test_close_leaves_a_plain_module(ranks):
    def body(rank, attach):
        model = mlp()
        gs = attach(model)
        loss_of(model, 0, rank).backward()
        gs.finish()
        reduced = [p.grad.clone() for p in model.parameters()]
        gs.close()
        gs.close()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), reduced, strict=True))
        with pytest.raises(UsageError, match="closed"):
            gs.finish()
        model.zero_grad()
        loss_of(model, 1, rank).backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = mlp()
    loss_of(plain, 1, 0).backward()
    (got,) = ranks(1, body)
    assert all(torch.equal(g, p.grad) for g, p in zip(got, plain.parameters(), strict=True))


def test_attaching_again_in_the_same_process(real_ranks):
    def body(rank, attach):
        model = mlp()
        norms = []
        for _ in range(2):
            gs = attach(model)  # the second closes the first
            loss_of(model, 0, rank).backward()
            norms.append(gs.finish().norm)
            model.zero_grad()
        assert gs.stats().hooks == 6
        gs.close()
        return norms

    for norms in real_ranks(2, body):
        assert norms[0] == norms[1]


@pytest.mark.parametrize("late", [0, 1])
def test_attaching_again_before_a_step_waits_for_all(real_ranks, late):
    def body(rank, attach):
        model = mlp()
        attach(model)
        if rank == late:
            time.sleep(0.1)
        gs = attach(model, accumulate=2)  # of nobody's declaration before
        for part in range(2):
            loss_of(model, part, rank).backward()
        return gs.finish().norm

    first, second = real_ranks(2, body)
    assert first == second


def test_a_notebook_cell_that_compiles_and_attaches_again(real_ranks):
    """A new wrapper around the same parameters: the hooks of the one before must be gone."""

    def body(rank, attach):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept, steps = [], []
        for _ in range(3):
            wrapped = nn.Sequential(model)
            gs = attach(wrapped)
            kept.append((wrapped, gs))
            for step in range(3):
                loss_of(wrapped, step, rank).backward()
                steps.append(gs.step(optimizer).copied_gradients)
            assert gs.stats().hooks == 3 * 6
        with pytest.raises(UsageError, match="later attach"):
            kept[0][1].finish()
        gs.close()
        return steps

    assert real_ranks(2, body) == [[6] * 9] * 2


def test_a_copy_of_an_attached_module_is_a_plain_one(ranks):
    """As for an average of weights, or a checkpoint of the whole module."""

    def body(rank, attach):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model) as gs:
            for step in range(3):
                loss_of(model, step, rank).backward()
                gs.step(optimizer)
                average = copy.deepcopy(model)
                saved = io.BytesIO()
                torch.save(model, saved)
                saved.seek(0)
                for other in (average, torch.load(saved, weights_only=False)):
                    assert_same_bits(weights(other), weights(model))
                    loss_of(other, step, rank).backward()
                    torch.optim.SGD(other.parameters(), lr=0.1).step()
            return gs.stats().hooks

    assert ranks(2, body) == [18, 18]


def test_pause_reaches_the_job(ranks):
    def body(rank, attach):
        model = mlp()
        with attach(model) as gs:
            with gs.pause():
                loss = loss_of(model, 0, rank)
            loss.backward()
            return gs.finish().step

    assert ranks(2, body) == [0, 0]
