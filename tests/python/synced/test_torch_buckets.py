"""Bucket rule "torch": the plan's buckets against torch's own function, on lists made here and in a live DDP."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from real_daemon import Ranks, binary
from torch import nn
from torch.nn.parallel import distributed as ddp

import gradsync
from gradsync import Partial, Replicate, Tensor
from gradsync.errors import InvalidParams, PlanMismatch

LISTS = 10_000
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
FIRST = dist._DEFAULT_FIRST_BUCKET_BYTES
CAP = ddp._DEFAULT_BUCKET_CAP_MB * ddp._MB_TO_BYTES
MEAN = {"dp": Partial("mean") >> Replicate()}


def torchs(tensors: list[torch.Tensor]) -> list[list[int]]:
    """What DistributedDataParallel gives its reducer (`_ddp_init_helper`)."""
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, [FIRST, CAP])
    return list(reversed(buckets))


# ---- 10,000 lists


def some_elements(random: random.Random, size: int) -> int:
    """Nothing, one, a layer's worth, or as much as makes the difference between open and full."""
    kind = random.randrange(8)
    if kind == 0:
        return random.randrange(2)
    if kind == 1:
        return (random.choice([FIRST, CAP]) // size + random.randrange(-1, 2)) // random.choice([1, 1, 2, 3])
    if kind == 2:
        return random.randrange(CAP // size, 3 * CAP // size)
    return int(2 ** random.uniform(0, 23)) // size


def some_list(random: random.Random) -> list[tuple[str, int]]:
    dtypes = random.sample(list(DTYPES), random.choice([1, 1, 2, 2, 3, 4]))
    count = random.choice([1, random.randrange(2, 12), random.randrange(12, 80)])
    most = random.choice([1, 8])  # lists of small tensors alone fill buckets with many
    made = []
    for _ in range(count):
        dtype = random.choice(dtypes)
        made.append((dtype, some_elements(random, DTYPES[dtype].itemsize) // (64 if most == 1 else 1)))
    return made


def test_buckets_equal_torchs_on_10000_lists(tmp_path: Path) -> None:
    made = random.Random(7)
    several = mixed = oversized = 0
    with (tmp_path / "lists").open("w") as file:
        for _ in range(LISTS):
            tensors = some_list(made)
            buckets = torchs([torch.empty(n, dtype=DTYPES[dtype], device="meta") for dtype, n in tensors])
            several += len(buckets) > len({dtype for dtype, _ in tensors})
            mixed += len({dtype for dtype, _ in tensors}) > 1
            oversized += any(n * DTYPES[dtype].itemsize > CAP for dtype, n in tensors)
            numbers = ",".join(" ".join(map(str, bucket)) for bucket in buckets)
            file.write(f"{' '.join(f'{dtype} {n}' for dtype, n in tensors)} : {numbers}\n")
    assert min(several, mixed, oversized) > LISTS // 4  # the lists are worth something

    planner = Path(binary()).with_name("plan_test")
    if not planner.exists():
        pytest.skip(f"{planner} is not there: build it")
    done = subprocess.run(
        [planner, "--gtest_filter=*TorchBucketsOfFile*"],
        env={**os.environ, "GRADSYNC_TORCH_BUCKETS": str(tmp_path / "lists")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{LISTS} lists are equal" in done.stdout, done.stdout[-3000:]


# ---- live


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one, for DDP."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Layers(nn.Module):
    """A model of two dtypes, with more than two buckets of one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(800, 512, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(nn.Linear(1200, 1200) for _ in range(10))
        self.norms = nn.ModuleList(nn.LayerNorm(512, dtype=torch.bfloat16) for _ in range(3))


def declared(module: nn.Module) -> list[Tensor]:
    names = {dtype: name for name, dtype in DTYPES.items()}
    return [
        Tensor(name, tuple(parameter.shape), dtype=names[parameter.dtype], placements=MEAN)
        for name, parameter in module.named_parameters()
    ]


def test_a_declaration_has_the_buckets_of_a_live_ddp(address: str, alone: None) -> None:
    module = Layers()
    parameters = list(module.parameters())
    # With find_unused_parameters DDP says at once what it does; else it begins with one bucket, and uses the same
    # function after the first step, on the parameters in the order in which their gradients came.
    reducer = nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
    sizes = [int(size) for size in reducer._get_ddp_logging_data()["bucket_sizes"].split(",")]

    def body(rank: int, job: gradsync.Job) -> list[list[int]]:
        return [list(bucket.tensors) for bucket in job.declare(declared(module), buckets="torch").buckets]

    for buckets in Ranks(address)(2, body):
        assert buckets == torchs(parameters)
        assert [sum(parameters[i].nbytes for i in bucket) for bucket in buckets] == sizes
    assert len(sizes) > 3


def test_what_is_reduced_does_not_depend_on_the_rule(address: str) -> None:
    tensors = [Tensor(str(i), (n,), placements=MEAN) for i, n in enumerate([300_000, 5, 0, 1, 70_000, 31])]

    def body(rank: int, job: gradsync.Job, rule: str) -> tuple[list[list[int]], list[bytes], float]:
        grads = job.declare(tensors, buckets=rule)
        for tensor in tensors:
            made = torch.Generator().manual_seed(100 * rank + int(tensor.name))
            grads.input(tensor.name).torch().copy_(torch.randn(tensor.shape, generator=made))
            grads.ready(tensor.name)
        norm = grads.finish().norm
        buckets = [list(bucket.tensors) for bucket in grads.buckets]
        return buckets, [bytes(grads.output(tensor.name).memoryview()) for tensor in tensors], norm

    of_torch = Ranks(address)(3, lambda rank, job: body(rank, job, "torch"))
    others = Ranks(address)(3, lambda rank, job: body(rank, job, "default"))
    assert of_torch[0][0] == [[1, 2, 3, 4, 5], [0]]
    assert others[0][0] == [[5, 4, 3, 2, 1, 0]]
    for one, other in zip(of_torch, others, strict=True):
        assert one[1:] == other[1:] == of_torch[0][1:]


def test_ranks_have_one_rule(address: str) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        with pytest.raises(PlanMismatch, match="buckets is torch on rank 0 and default on rank 1") as caught:
            job.declare([Tensor("a", (4,), placements=MEAN)], buckets="default" if rank else "torch", timeout=20.0)
        assert caught.value.path == "options.buckets"

    Ranks(address)(2, body)


def test_an_unknown_rule_is_refused_by_name(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradsync._job.encode_options", lambda *_: {"buckets": "ddp"})

    def body(rank: int, job: gradsync.Job) -> None:
        with pytest.raises(InvalidParams, match='expected one of "default", "torch"') as caught:
            job.declare([Tensor("a", (4,), placements=MEAN)])
        assert caught.value.path == "options.buckets"

    Ranks(address)(1, body)
