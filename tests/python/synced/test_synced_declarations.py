"""Declarations of gradients before sync: what is refused, what cannot be asked for yet, and very many tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from product import Product
from sync_product import Ranks

import gradsync
from gradsync import Mesh, Only, Partial, Replicate, Shard, Tensor
from gradsync.errors import DeclareTimeout, NotReady, RpcError

MEAN, SUM = Partial("mean") >> Replicate(), Partial("sum") >> Replicate()


def outcomes(product: Product, axes: dict[str, int], body: Callable[[gradsync.Job], Any]) -> list[Any]:
    ranks = Ranks(math.prod(axes.values()), {"m": Mesh(axes)})
    return product.outcomes(ranks, body)  # type: ignore[arg-type]


def test_a_norm_before_all_is_reduced_is_refused(product: Product) -> None:
    """Rank 1 says nothing of `b`: it gets no norm, and is told what is missing; once it says so, both get one."""

    def body(job: gradsync.Job) -> float:
        placements = {"dp": Partial("sum") >> Shard(0)}
        grads = job.declare([Tensor(name, (4,), dtype=dtype, placements=placements) for name, dtype in TWO_BUCKETS])
        for name, _ in TWO_BUCKETS:
            grads.input(name).torch().fill_(1)
        (of_a,) = (bucket.index for bucket in grads.buckets if bucket.tensors == (0,))
        if job.rank == 1:
            with pytest.raises(NotReady, match=": b;"):
                grads.compute_norm(ready=[of_a], timeout=20.0)
        return grads.compute_norm(ready="all", timeout=20.0).norm

    assert outcomes(product, {"dp": 2}, body) == [float(np.float32(math.sqrt(32)))] * 2


TWO_BUCKETS = (("a", "float32"), ("b", "bfloat16"))


@pytest.mark.training
def test_so_many_tensors_that_their_offsets_are_not_told(product: Product) -> None:
    """Above 20,000 the client lays them out by the rule: scattered, whole, and those that a rank does not hold."""
    count = 24_600  # of which a rank holds 20,500

    def make(index: int) -> Tensor:
        kinds = (
            {"dp": Partial("sum") >> Shard(0), "pp": Replicate()},
            {"dp": SUM, "pp": Replicate()},
            {"dp": SUM, "pp": Only(index // 3 % 2)},
        )
        dtype = ("float32", "float64")[index // 7 % 2]
        return Tensor(f"t{index}", (index % 41,), dtype=dtype, placements=kinds[index % 3])

    def body(job: gradsync.Job) -> None:
        stage = job.rank // 2
        mine = [i for i in range(count) if i % 3 != 2 or i // 3 % 2 == stage]
        grads = job.declare([make(i) for i in mine])
        assert len(grads.offsets) == len(mine)
        for index in mine:
            array = grads.input(f"t{index}").numpy()
            array[:] = index + np.arange(array.size)
        grads.finish(ready="all")
        for index in mine:
            wanted = 2.0 * (index + np.arange(index % 41))
            half = -(-wanted.size // 2)
            wanted = wanted if index % 3 else wanted[half:] if job.rank % 2 else wanted[:half]
            assert np.array_equal(grads.output(f"t{index}").numpy(), wanted), index

    assert outcomes(product, {"pp": 2, "dp": 2}, body) == [None] * 4


REFUSED = {
    "a split order that scatters before it shards": (
        {"dp": 2, "tp": 2},
        lambda rank: Tensor(
            "w",
            (8,),
            local_shape=(4,),
            placements={"dp": Partial("sum") >> Shard(0), "tp": Shard(0)},
            split_order=("dp", "tp"),
        ),
        "split_order",
    ),
    "a divisor beside a mean": (
        {"dp": 2},
        lambda rank: Tensor("w", (8,), placements={"dp": Partial("mean") >> Shard(0)}, divisor=2.0),
        "divisor",
    ),
    "a scatter over a dim that is not there": (
        {"dp": 2},
        lambda rank: Tensor("w", (8,), placements={"dp": Partial("sum") >> Shard(1)}),
        "placements",
    ),
    "ranks that are summed but hold different elements": (
        {"dp": 2, "tp": 2},
        lambda rank: Tensor(
            "w",
            (8,),
            local_shape=(4,),
            local_offset=((0,), (4,), (4,), (0,))[rank],
            placements={"dp": SUM, "tp": Shard(0)},
        ),
        "local_shape",
    ),
    "one sums and the other averages": (
        {"dp": 2},
        lambda rank: Tensor("w", (8,), placements={"dp": (MEAN, SUM)[rank]}),
        "placements",
    ),
}


@pytest.mark.parametrize(("axes", "make", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_reduced_is_refused_by_field(
    product: Product, axes: dict[str, int], make: Callable[[int], Tensor], field: str
) -> None:
    refused = outcomes(product, axes, lambda job: job.declare([make(job.rank)], timeout=40.0))
    assert all(isinstance(error, RpcError) for error in refused)
    named = [error for error in refused if not isinstance(error, DeclareTimeout)]
    assert named
    for error in named:
        assert error.kind in ("invalid_declaration", "plan_mismatch", "unsupported_placement")
        assert error.tensor == "w"
        # A rank that hears of another's refusal has no such field in its own request.
        assert f".{field}" in error.path if error.path else "the declaration of rank" in str(error)
    assert any(error.path for error in named)
