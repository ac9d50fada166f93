"""What a real gradsyncd computes: sums, norms and clips of every dtype, to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from real_daemon import MEAN, SUM, Ranks, all_ready

import gradsync
from gradsync import Clip, Tensor
from gradsync.errors import (
    AccumulationError,
)

DTYPES = ("float32", "float64", "float16", "bfloat16")


def to_bits(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Exact values in the form `Buffer.numpy()` has them."""
    if dtype == "bfloat16":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    return values.astype(dtype)


def from_bits(array: numpy.ndarray, dtype: str) -> numpy.ndarray:
    if dtype == "bfloat16":
        return (array.astype("u4") << 16).view("f4").astype("f8")
    return array.astype("f8")


def round_to(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """float32 products rounded once to the dtype, as bits."""
    if dtype == "bfloat16":
        bits = values.astype("f4").view("u4").astype("u8")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")
    return values.astype(dtype)


def gradient(rank: int, size: int) -> numpy.ndarray:
    """Small integers: every sum of ranks is exact in every dtype."""
    return ((numpy.arange(size) * (rank + 3)) % 13 - 6).astype("f8") * 6


@pytest.mark.parametrize("data_path", ["arena", "stats"])
@pytest.mark.parametrize("clip", [None, {"all": Clip(max_norm=1.0), "other": Clip.percentile(1.0, window=4, warmup=1)}])
def test_a_job_in_which_nobody_holds_a_tensor_has_the_norm_zero(data_path: str, clip: Any, ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[gradsync.StepReport]:
        grads = job.declare([], data_path=data_path, clip=clip)
        assert grads.explain()["total"] == 0
        reports = [grads.finish(), grads.finish(max_norm=0.5)]
        assert grads.compute_norm().norm == 0.0
        return [*reports, grads.apply_clip()]

    for reports in ranks(2, body):
        assert [report.step for report in reports] == [0, 1, 2]
        for report in reports:
            assert (report.norm, report.coefficient, report.clipped, report.skipped) == (0.0, 1, False, False)
            assert {group.name for group in report.groups} == set(clip or {"all": None})
            assert [group.norm for group in report.groups] == [0.0] * len(report.groups)
            assert (report.counted_elements, report.collectives) == (0, 0)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_every_dtype_is_reduced_exactly(world: int, op: str, ranks: Ranks) -> None:
    tensors = [
        Tensor(f"{dtype}.{size}", (size,), dtype=dtype, placements=MEAN if op == "mean" else SUM)
        for dtype in DTYPES
        for size in (1, 7, 1000)
    ]

    def body(rank: int, job: gradsync.Job) -> tuple[list[gradsync.StepReport], list[numpy.ndarray]]:
        grads = job.declare(tensors)
        reports = []
        for step in range(3):
            for tensor in tensors:
                values = gradient(rank + step, tensor.shape[0])
                grads.input(tensor.name).numpy()[:] = to_bits(values, tensor.dtype)
                grads.ready(tensor.name)
            reports.append(grads.finish())
        return reports, [grads.output(tensor.name).numpy().copy() for tensor in tensors]

    results = ranks(world, body)
    square = 0.0
    for index, tensor in enumerate(tensors):
        total = sum(gradient(rank + 2, tensor.shape[0]) for rank in range(world))
        expected = total / world if op == "mean" else total
        for _, outputs in results:
            assert outputs[index].tobytes() == to_bits(expected, tensor.dtype).tobytes(), tensor.name
        square += float((expected**2).sum())
    for reports, _ in results:
        assert [report.step for report in reports] == [0, 1, 2]
        assert reports[-1].norm == pytest.approx(math.sqrt(square), rel=1e-7)
        assert reports[-1].norm == results[0][0][-1].norm
        assert reports[-1].counted_elements == 4 * 1008
        assert (reports[-1].coefficient, reports[-1].clipped, reports[-1].threshold) == (1, False, math.inf)
        assert reports[-1].data_path == "arena"


@pytest.mark.parametrize("formula", ["strict", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_multiplies_once_and_rounds_once(dtype: str, formula: str, ranks: Ranks) -> None:
    shape = (37, 11)

    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, numpy.ndarray]:
        grads = job.declare(
            [Tensor("w", shape, dtype=dtype, placements=SUM)],
            clip=Clip(max_norm=0.7),
            formula=formula,  # type: ignore[arg-type]
        )
        grads.input("w").numpy()[:] = to_bits(gradient(rank, 37 * 11).reshape(shape), dtype)
        grads.ready("w")
        return grads.finish(), grads.output("w").numpy().copy()

    total = (gradient(0, 37 * 11) + gradient(1, 37 * 11)).reshape(shape)
    wide = numpy.float64 if dtype == "float64" else numpy.float32
    norm = wide(math.sqrt(float((total**2).sum())))
    for report, output in ranks(2, body):
        assert report.clipped
        assert (report.norm, report.threshold) == (float(norm), 0.7 if dtype == "float64" else pytest.approx(0.7))
        if formula == "torch":  # as torch evaluates it: reciprocal, then times
            coefficient = wide(1) / (norm + wide(1e-6)) * wide(0.7)
            assert report.coefficient == float(coefficient)
        else:
            coefficient = wide(report.coefficient)
            assert float(coefficient) == report.coefficient
            assert float(coefficient) * float(norm) <= 0.7
            assert float(coefficient) == pytest.approx(0.7 / float(norm), rel=1e-6)
        expected = total * coefficient if dtype == "float64" else total.astype("f4") * coefficient
        assert output.tobytes() == round_to(expected, dtype).tobytes()


def test_torch_formula_equals_torch_bit_for_bit(ranks: Ranks) -> None:
    torch = pytest.importorskip("torch")
    sizes = [(64, 3), (5,), (1,)]

    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, list[Any]]:
        generator = numpy.random.default_rng(rank)
        tensors = [Tensor(f"t{index}", shape, placements=MEAN) for index, shape in enumerate(sizes)]
        grads = job.declare(tensors, clip=Clip(max_norm=0.5), formula="torch")
        for tensor in tensors:
            grads.input(tensor.name).numpy()[:] = generator.standard_normal(tensor.shape, "f4")
            grads.ready(tensor.name)
        report = grads.finish(max_norm=None)  # measured, and the bits are those of the mean
        means = [grads.output(tensor.name).torch().clone() for tensor in tensors]
        for tensor, mean in zip(tensors, means, strict=True):
            grads.input(tensor.name).torch().copy_(mean)
            grads.ready(tensor.name)
        clipped = grads.finish()
        assert clipped.norm == report.norm
        parameters = [torch.nn.Parameter(torch.zeros_like(mean)) for mean in means]
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = mean.clone()
        torch.nn.utils.clip_grads_with_norm_(parameters, 0.5, torch.tensor(clipped.norm))
        for tensor, parameter in zip(tensors, parameters, strict=True):
            assert torch.equal(grads.output(tensor.name).torch(), parameter.grad)
        return report, means

    ranks(2, body)


def test_strict_leaves_what_is_within_the_threshold_bit_unchanged(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, bytes]:
        grads = job.declare([Tensor("w", (3,), placements=SUM)], clip=Clip(max_norm=100))
        grads.input("w").numpy()[:] = [0.1, -0.0, 1e-40]
        grads.ready("w")
        return grads.finish(), grads.output("w").numpy().tobytes()

    for report, bits in ranks(1, body):
        assert (report.clipped, report.coefficient, report.threshold) == (False, 1, 100)
        assert bits == numpy.array([0.1, -0.0, 1e-40], "f4").tobytes()


def test_scale_is_taken_out_once_and_norms_are_in_unscaled_units(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, list[float]]:
        grads = job.declare([Tensor("w", (2,), placements=SUM)], clip=Clip(max_norm=50))
        grads.input("w").numpy()[:] = numpy.array([3, 4], "f4") * 1024
        grads.ready("w")
        return grads.finish(scale=1024), grads.output("w").numpy().tolist()

    for report, values in ranks(2, body):
        assert (report.norm, report.clipped, values) == (10, False, [6, 8])


def test_accumulated_and_unused_tensors(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[gradsync.StepReport]:
        tensors = [Tensor(name, (4,), placements=MEAN) for name in ("used", "half", "none")]
        grads = job.declare(tensors, accumulate=2)
        reports = []
        for step in range(2):
            grads.input("used").numpy()[:] = 0
            grads.input("half").numpy()[:] = 6 if rank == 0 else 99
            for micro_batch in range(2):
                grads.input("used").numpy()[:] += rank + 1
                grads.ready("used", micro_batch)
                if rank == 0:
                    grads.ready("half", micro_batch)
            with pytest.raises(AccumulationError):
                grads.ready("used")
            if rank == 1:
                grads.mark_unused("half")
            grads.mark_unused("none")
            reports.append(grads.finish())
            assert grads.output("used").numpy().tolist() == [3] * 4, step
            assert grads.output("half").numpy().tolist() == [3] * 4, step  # unused on one rank is a zero there
        return reports

    for reports in ranks(2, body):
        assert [report.absent for report in reports] == [("none",), ("none",)]
        assert reports[0].norm == pytest.approx(math.sqrt(8 * 9))


def test_a_nan_is_found_with_the_micro_batch_that_completed_its_bucket(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, str]:
        grads = job.declare([Tensor("w", (4,), placements=MEAN)], accumulate=3, clip=Clip(nonfinite="raise"))
        grads.input("w").numpy()[:] = 0
        for micro_batch in range(3):
            grads.input("w").numpy()[0] += math.nan if micro_batch == rank else 1
            grads.ready("w", micro_batch if rank == 0 else None)  # rank 1 leaves the number out
        with pytest.raises(gradsync.ClipRaised) as raised:
            grads.finish()
        return raised.value.report, str(raised.value)

    for report, said in ranks(2, body):
        assert [(one.rank, one.micro_batch) for one in report.nonfinite[0].inputs] == [(0, 2), (1, None)]
        assert "(tensors: 'w' of rank 0 (complete in micro-batch 2), rank 1)" in said


def test_the_two_halves_give_what_finish_gives(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, ...]:
        grads = job.declare([Tensor("w", (2,), placements=SUM)], clip=Clip(max_norm=1))
        halves = []
        for _ in range(2):
            grads.input("w").numpy()[:] = [3 / 2, 2]
            grads.ready("w")
            halves.append(grads.compute_norm())
            assert grads.input("w").numpy().tolist() == [3, 4]
            halves.append(grads.apply_clip(2.5))
            assert grads.input("w").numpy().tolist() == [1.5, 2]
        grads.input("w").numpy()[:] = [3 / 2, 2]
        grads.ready("w")
        return (*halves, grads.finish(max_norm=2.5))

    for measured, clipped, *_, whole in ranks(2, body):
        assert (measured.norm, measured.coefficient, measured.next_attempt) == (5, 1, measured.attempt)
        assert (clipped.norm, clipped.coefficient, clipped.clipped) == (5, 0.5, True)
        assert (whole.norm, whole.coefficient, whole.clipped) == (5, 0.5, True)


def test_an_infinite_max_norm_measures_only(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        grads = job.declare([Tensor("w", (2,), placements=SUM)], clip=Clip(max_norm=1))
        for halves in (False, True):
            grads.input("w").numpy()[:] = [3, 4]
            all_ready(grads)
            if halves:
                assert grads.compute_norm().norm == 5
                report = grads.apply_clip(max_norm=math.inf)
            else:
                report = grads.finish(max_norm=math.inf)
            assert (report.norm, report.threshold, report.clipped) == (5, math.inf, False)
            assert grads.output("w").numpy().tolist() == [3, 4]

    ranks(1, body)


def test_clip_groups_have_norms_of_their_own(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, list[float], list[float]]:
        tensors = [
            Tensor("w", (2,), placements=SUM, layer="l0"),
            Tensor("m", (2,), placements=SUM, clip_group="muon", layer="l1"),
        ]
        grads = job.declare(tensors, clip={"all": Clip(max_norm=1), "muon": Clip(max_norm=100)})
        grads.input("w").numpy()[:] = [3, 4]
        grads.input("m").numpy()[:] = [6, 8]
        all_ready(grads)
        report = grads.finish()
        return report, grads.output("w").numpy().tolist(), grads.output("m").numpy().tolist()

    for report, w, m in ranks(1, body):
        assert {group.name: (group.norm, group.clipped) for group in report.groups} == {
            "all": (5, True),
            "muon": (10, False),
        }
        assert report.norm == pytest.approx(math.sqrt(125))
        assert {layer.name: layer.norm for layer in report.layers} == {"l0": 5, "l1": 10}
        assert numpy.hypot(*w) <= 1
        assert m == [6, 8]


def test_nonfinite_values_name_tensor_and_rank(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> gradsync.StepReport:
        grads = job.declare([Tensor("good", (4,), placements=SUM), Tensor("bad", (4,), placements=SUM)])
        grads.input("good").numpy()[:] = 1
        grads.input("bad").numpy()[:] = [1, 2, math.inf if rank == 1 else 0, math.nan if rank == 1 else 0]
        all_ready(grads)
        return grads.finish()

    for report in ranks(2, body):
        assert report.found_inf
        assert not math.isfinite(report.norm)
        (finding,) = report.nonfinite
        assert (finding.tensor, finding.count) == ("bad", 2)
        assert [(item.rank, item.count) for item in finding.inputs] == [(1, 2)]
