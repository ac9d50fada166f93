"""Cases whose numbers are known by hand, by name: d9d's, FSDP over TP, experts, tied weights, what nobody used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from product import Product
from sync_product import Ranks

import gradsync
from gradsync import Mesh, Only, Partial, Replicate, Shard, Tensor

MEAN, SUM = Partial("mean") >> Replicate(), Partial("sum") >> Replicate()


def each(product: Product, axes: dict[str, int], body: Callable[[gradsync.Job], Any]) -> list[Any]:
    ranks = Ranks(math.prod(axes.values()), {"m": Mesh(axes)})
    return product.each(ranks, body)  # type: ignore[arg-type]


D9D_MESHES = {"dp": {"dp": 8}, "pp-dp-tp": {"dp_replicate": 2, "dp_shard": 2, "tp": 2}}


@pytest.mark.parametrize("axes", D9D_MESHES.values(), ids=D9D_MESHES.keys())
def test_d9d_eight_ranks_add_their_number_twice_and_all_hold_56(product: Product, axes: dict[str, int]) -> None:
    """Its end-to-end test: five steps of two micro-batches; tensors that are sharded keep 2r. The parameters are
    bfloat16 and their gradients float32."""
    synced, cut = tuple(axes), tuple(axes)

    def body(job: gradsync.Job) -> list[tuple[float, list[torch.Tensor]]]:
        grads = job.declare(
            [
                Tensor("synced.0", (16, 3), placements={synced: SUM}),
                Tensor("synced.1", (5,), placements=dict.fromkeys(axes, SUM)),
                Tensor("sharded", (8, 4), local_shape=(1, 4), placements={cut: Shard(0)}),
            ],
            accumulate=2,
        )
        weights = [torch.nn.Parameter(torch.zeros(t.held_shape, dtype=torch.bfloat16)) for t in grads.tensors]
        assert [stage["axes"] for stage in explained(grads, "sharded")["stages"]] == []
        found = []
        for _ in range(5):
            views = [grads.input(tensor.name).torch().zero_() for tensor in grads.tensors]
            for _ in range(2):
                for tensor, weight, view in zip(grads.tensors, weights, views, strict=True):
                    gradient = torch.full_like(weight, float(job.rank))
                    view.add_(gradient)
                    grads.ready(tensor.name)
            norm = grads.finish().norm
            found.append((norm, [grads.output(tensor.name).torch().clone() for tensor in grads.tensors]))
        return found

    once = (16 * 3 + 5) * 56.0**2 + sum(4 * (2.0 * rank) ** 2 for rank in range(8))
    for rank, found in enumerate(each(product, axes, body)):
        for norm, (first, second, sharded) in found:
            assert torch.equal(first, torch.full((16, 3), 56.0))
            assert torch.equal(second, torch.full((5,), 56.0))
            assert torch.equal(sharded, torch.full((1, 4), 2.0 * rank))
            assert norm == float(np.float32(math.sqrt(once)))


def explained(grads: gradsync.Grads, name: str) -> dict[str, Any]:
    return next(tensor for tensor in grads.explain()["tensors"] if tensor["name"] == name)


def test_fsdp_over_tp(product: Product) -> None:
    """6 × 4 over tp 2 and then dp 2: each rank reduces its 3 rows and keeps two, or one, of the mean."""
    whole = np.arange(24, dtype=np.float32).reshape(6, 4)
    placements = {"dp": Partial("mean") >> Shard(0), "tp": Shard(0)}

    def body(job: gradsync.Job) -> tuple[float, np.ndarray, np.ndarray]:
        dp, tp = divmod(job.rank, 2)
        grads = job.declare([Tensor("w", (6, 4), local_shape=(3, 4), placements=placements)])
        mine = whole[3 * tp : 3 * tp + 3] * (1, 3)[dp]
        grads.input("w").numpy()[:] = mine
        grads.ready("w")
        report = grads.finish()
        assert np.array_equal(grads.input("w").numpy(), mine)
        return report.norm, grads.output("w").numpy().copy(), whole[3 * tp : 3 * tp + 3][(slice(0, 2), slice(2, 3))[dp]]

    for norm, output, wanted in each(product, {"dp": 2, "tp": 2}, body):
        assert np.array_equal(output, 2 * wanted)
        assert norm == float(np.float32(2 * np.linalg.norm(whole.astype(np.float64))))


def test_more_ranks_than_rows(product: Product) -> None:
    """Two rows over four ranks: the last two hold nothing, contribute, and finish."""

    def body(job: gradsync.Job) -> tuple[float, list[list[float]]]:
        grads = job.declare([Tensor("w", (2, 3), dtype="float64", placements={"dp": Partial("sum") >> Shard(0)})])
        grads.input("w").numpy()[:] = [[1, 2, 3], [4, 5, 6]]
        grads.ready("w")
        return grads.finish().norm, grads.output("w").numpy().tolist()

    found = each(product, {"dp": 4}, body)
    assert [output for _, output in found] == [[[4, 8, 12]], [[16, 20, 24]], [], []]
    assert {norm for norm, _ in found} == {4 * math.sqrt(91)}


def test_a_frameworks_own_cut_is_scattered_as_declared(product: Product) -> None:
    """tp holds rows 0-1 and 2-4, which no torch.chunk leaves: dp halves what each of them has."""
    whole = np.arange(10, dtype=np.float32).reshape(5, 2)
    held = (slice(0, 2), slice(2, 5))

    def body(job: gradsync.Job) -> list[list[float]]:
        mine = whole[held[job.rank % 2]]
        placements = {"dp": Partial("sum") >> Shard(0), "tp": Shard(0)}
        offset = (held[job.rank % 2].start, 0)
        grads = job.declare([Tensor("w", (5, 2), local_shape=mine.shape, local_offset=offset, placements=placements)])
        grads.input("w").numpy()[:] = mine
        grads.ready("w")
        assert grads.finish().counted_elements == 10
        return grads.output("w").numpy().tolist()

    wanted = [2 * whole[:1], 2 * whole[2:4], 2 * whole[1:2], 2 * whole[4:]]
    assert each(product, {"dp": 2, "tp": 2}, body) == [rows.tolist() for rows in wanted]


def test_columns_are_scattered_too(product: Product) -> None:
    """Over dim 1, five columns on two ranks: what a rank keeps lies in its input in pieces."""
    whole = np.arange(15, dtype=np.float32).reshape(3, 5)

    def body(job: gradsync.Job) -> np.ndarray:
        grads = job.declare([Tensor("w", (3, 5), placements={"dp": Partial("sum") >> Shard(1)})])
        grads.input("w").numpy()[:] = whole + job.rank
        grads.ready("w")
        grads.finish()
        return grads.output("w").numpy().copy()

    first, second = each(product, {"dp": 2}, body)
    assert np.array_equal(first, (2 * whole + 1)[:, :3])
    assert np.array_equal(second, (2 * whole + 1)[:, 3:])


def test_the_experts_divisor_is_that_of_the_dense_ranks(product: Product) -> None:
    """Eight data-parallel ranks; experts are spread over four of them and averaged as if over all eight, also where an
    expert has one rank alone and nothing is left to sum."""

    def body(job: gradsync.Job) -> list[float]:
        grads = job.declare(
            [
                Tensor("dense", (1,), mesh="dense", placements={"dp": MEAN}),
                Tensor(
                    "expert",
                    (4,),
                    local_shape=(1,),
                    mesh="expert",
                    placements={"dp": SUM, "ep": Shard(0)},
                    divisor=8.0,
                ),
                Tensor("alone", (8,), local_shape=(1,), mesh="single", placements={"ep": Shard(0)}, divisor=8.0),
            ]
        )
        for tensor in grads.tensors:
            grads.input(tensor.name).numpy()[:] = 8.0 * (job.rank + 1)
            grads.ready(tensor.name)
        grads.finish()
        return [float(grads.output(tensor.name).numpy()[0]) for tensor in grads.tensors]

    meshes = {"dense": Mesh({"dp": 8}), "expert": Mesh({"dp": 2, "ep": 4}), "single": Mesh({"dp": 1, "ep": 8})}
    found = product.each(Ranks(8, meshes), body)  # type: ignore[arg-type]
    assert [dense for dense, _, _ in found] == [36.0] * 8
    assert [expert for _, expert, _ in found] == [6.0, 8.0, 10.0, 12.0] * 2
    assert [alone for _, _, alone in found] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_norm_weight_under_sequence_parallelism(product: Product) -> None:
    """Each tp rank sees its part of the sequence: summed over tp, averaged over dp, the same on all four."""

    def body(job: gradsync.Job) -> list[float]:
        grads = job.declare([Tensor("norm", (2,), placements={"tp": SUM, "dp": MEAN})])
        grads.input("norm").numpy()[:] = [1, job.rank]
        grads.ready("norm")
        grads.finish()
        return grads.output("norm").numpy().tolist()

    assert each(product, {"dp": 2, "tp": 2}, body) == [[2.0, 3.0]] * 4


def test_tied_copies_on_two_stages(product: Product) -> None:
    """The embedding of the first stage, the head of the last: one sum over all four, counted once, clipped on both."""

    def body(job: gradsync.Job) -> tuple[float, int, list[float]]:
        stage, dp = divmod(job.rank, 2)
        name = ("embedding", "head")[stage]
        clip = gradsync.Clip(max_norm=13.0)
        grads = job.declare([Tensor(name, (2,), placements={"pp": Only(stage), "dp": MEAN}, tied="e")], clip=clip)
        grads.input(name).numpy()[:] = ([[10, 16], [20, 32]], [[6, 12], [16, 36]])[stage][dp]
        grads.ready(name)
        report = grads.finish()
        return report.norm, report.counted_elements, grads.output(name).numpy().tolist()

    found = each(product, {"pp": 2, "dp": 2}, body)
    norm = math.sqrt(26**2 + 48**2)
    assert [(norm, 2)] * 4 == [(pytest.approx(n), counted) for n, counted, _ in found]
    assert len({tuple(output) for _, _, output in found}) == 1
    assert found[0][2] == pytest.approx([26 * 13 / norm, 48 * 13 / norm], rel=1e-6)


def test_unused_somewhere_is_left_out_and_unused_in_a_group_is_missing(product: Product) -> None:
    """dp 2 × tp 2, sharded over tp. `some` is unused on rank 2, `half` on both ranks of tp 0, `none` everywhere."""

    def body(job: gradsync.Job) -> tuple[gradsync.StepReport, dict[str, list[float]]]:
        placements = {"dp": MEAN, "tp": Shard(0)}
        names = ("some", "half", "none")
        grads = job.declare([Tensor(name, (4,), local_shape=(2,), placements=placements) for name in names])
        unused = {"some": (2,), "half": (0, 2), "none": (0, 1, 2, 3)}
        for name in names:
            grads.input(name).numpy()[:] = 6.0
            if job.rank in unused[name]:
                grads.mark_unused(name)
            else:
                grads.ready(name)
        report = grads.finish()
        return report, {name: grads.output(name).numpy().tolist() for name in ("some", "half")}

    for rank, (report, outputs) in enumerate(each(product, {"dp": 2, "tp": 2}, body)):
        assert outputs["some"] == ([3.0, 3.0], [6.0, 6.0])[rank % 2]
        assert outputs["half"] == ([0.0, 0.0], [6.0, 6.0])[rank % 2]
        assert {found.tensor: found.ranks for found in report.missing} == {"half": (0, 2)}
        assert report.divergence == ()
        assert report.absent == ("none",)
        assert report.norm == float(np.float32(math.sqrt(2 * 9 + 2 * 36 + 2 * 36)))


def test_a_nan_is_named_by_tensor_and_rank(product: Product) -> None:
    def body(job: gradsync.Job) -> tuple[gradsync.StepReport, list[float]]:
        grads = job.declare([Tensor("w", (4,), placements={"dp": Partial("sum") >> Shard(0)})])
        grads.input("w").numpy()[:] = [1, 2, math.nan if job.rank == 1 else 3, 4]
        grads.ready("w")
        return grads.finish(), grads.output("w").numpy().tolist()

    for rank, (report, output) in enumerate(each(product, {"dp": 2}, body)):
        assert math.isnan(report.norm)
        assert report.found_inf
        (found,) = report.nonfinite
        assert (found.tensor, found.count) == ("w", 1)
        assert [(i.rank, i.count) for i in found.inputs] == [(1, 1)]
        assert output == [2, 4] if rank == 0 else math.isnan(output[0]) and output[1] == 8


def test_a_scale_is_taken_out_of_scattered_outputs_once(product: Product) -> None:
    def body(job: gradsync.Job) -> tuple[float, list[float]]:
        grads = job.declare([Tensor("w", (2,), placements={"dp": Partial("mean") >> Shard(0)})])
        grads.input("w").numpy()[:] = [3 * 1024, 4 * 1024]
        grads.ready("w")
        return grads.finish(scale=1024.0).norm, grads.output("w").numpy().tolist()

    assert each(product, {"dp": 2}, body) == [(5.0, [3.0]), (5.0, [4.0])]
