"""Data path stats against a real gradsyncd: ranks are threads, gradients are lists of numbers."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from real_daemon import Ranks, binary

import gradsync
from gradsync import Clip, Only, Replicate, Row, Shard, Tensor
from gradsync.errors import InvalidDeclaration, PlanMismatch, RpcError, WeightsDiverged

FSDP = [
    Tensor("w", (4,), local_shape=(2,), placements={"dp": Shard(0)}),
    Tensor("b", (2,), placements={"dp": Replicate()}),
]


class MeshRanks(Ranks):
    """Ranks of a job with meshes of its own."""

    def __init__(self, address: str, meshes: dict[str, dict[str, int]]) -> None:
        super().__init__(address)
        self.meshes = meshes

    def outcomes(self, count: int, body: Any) -> list[Any]:
        def attach(rank: int, job: gradsync.Job) -> Any:
            client = job.client
            job.detach()
            again = client.attach(job=f"{self.job}-m", rank=rank, world_size=count, meshes=self.meshes)
            return body(rank, again)

        return super().outcomes(count, attach)


def f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_pipeline_and_experts_come_to_the_root_of_192(address: str) -> None:
    """Eight ranks, PP 4 × EP 2: 64 replicated ones on stage 0, 128 on stage 1 in two halves, nothing on the others."""

    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, float, dict[str, Any]]:
        stage = rank // 2
        held = [
            [Tensor("dense", (8, 8), placements={"pp": Only(0), "ep": Replicate()})],
            [Tensor("experts", (8, 16), local_shape=(8, 8), placements={"pp": Only(1), "ep": Shard(1)})],
            [],
            [],
        ][stage]
        grads = job.declare(held, data_path="stats", clip=Clip(max_norm=1.0))
        gradients = {tensor.name: [1.0] * 64 for tensor in held}
        for name, gradient in gradients.items():
            grads.write(name, gradient)
        report = grads.finish()
        clipped = [value * report.coefficient for gradient in gradients.values() for value in gradient]
        return report, math.fsum(v * v for v in clipped), grads.explain()

    results = MeshRanks(address, {"mesh": {"pp": 4, "ep": 2}})(8, body)
    assert {report.norm for report, _, _ in results} == {f32(math.sqrt(192))}
    assert {report.coefficient for report, _, _ in results} == {results[0][0].coefficient}
    # Two holders of the dense half, one of each half of the experts: 64 + 64 + 64 + 64 ones over 192.
    assert math.fsum(squares for _, squares, _ in results) == pytest.approx(256 / 192, rel=1e-6)
    report = results[0][0]
    assert report.counted_elements == 192
    assert report.data_path == "stats"
    assert [c.axes for c in report.scalar_collectives] == [("ep",), ("pp",)]
    assert results[7][2]["total"] == 2


@pytest.mark.parametrize("groups", [("all", "all"), ("narrow", "wide")])
def test_one_double_precision_gradient_makes_the_norm_of_every_rank_double(
    groups: tuple[str, str], address: str
) -> None:
    """Two pipeline stages, float32 on the first, which holds no float64, and float64 on the second."""

    def body(rank: int, job: gradsync.Job) -> tuple[str, bytes, bytes]:
        held = [
            Tensor("first", (2,), dtype="float32", placements={"pp": Only(0)}, clip_group=groups[0]),
            Tensor("last", (2,), dtype="float64", placements={"pp": Only(1)}, clip_group=groups[1]),
        ][rank]
        grads = job.declare([held], data_path="stats", clip={group: Clip(max_norm=1.0) for group in groups})
        grads.write(held.name, [1.0, 1.0 + rank])
        report = grads.finish()
        assert isinstance(grads, gradsync.ReducedGrads)
        return grads.norm_dtype, struct.pack("d", report.norm), struct.pack("d", report.coefficient)

    found = MeshRanks(address, {"mesh": {"pp": 2}})(2, body)
    assert found == [found[0]] * 2
    dtype, norm, _ = found[0]
    assert dtype == "float64"
    assert norm == struct.pack("d", math.sqrt(7))  # which no float32 is


def test_a_shard_is_added_and_a_replica_counted_once(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[gradsync.StepReport]:
        grads = job.declare(FSDP, data_path="stats", clip=Clip(max_norm=1.0))
        reports = []
        for _ in range(3):
            grads.write("w", [1.0 + rank, 2.0])
            grads.write("b", [3.0, 4.0])
            reports.append(grads.finish())
        return reports

    first, second = ranks(2, body)
    assert [r.norm for r in first] == [f32(math.sqrt(5 + 8 + 25))] * 3 == [r.norm for r in second]
    assert first[0].coefficient * first[0].norm <= 1
    assert not first[0].divergence
    assert [c.axes for c in first[0].scalar_collectives] == [("dp",)]
    assert [r.step for r in first] == [0, 1, 2]


@pytest.mark.parametrize(("p", "norm"), [(1.0, 17.0), (3.0, 161.0 ** (1 / 3)), (math.inf, 5.0)])
def test_other_norms(p: float, norm: float, ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> float:
        grads = job.declare(FSDP, data_path="stats", norm_type=p)
        grads.write("w", [2.0, -2.0] if rank == 0 else [2.0, 1.0])
        grads.write("b", [-5.0, 5.0] if p == 1 else [5.0, 1.0])
        return grads.finish().norm

    values = [2.0, -2.0, 2.0, 1.0, *([-5.0, 5.0] if p == 1 else [5.0, 1.0])]
    exact = max(map(abs, values)) if math.isinf(p) else sum(abs(v) ** p for v in values) ** (1 / p)
    found = ranks(2, body)
    assert found == [pytest.approx(exact, rel=1e-7)] * 2
    assert p != 1.0 or exact == norm


def test_a_replica_that_differs_is_named(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> gradsync.StepReport:
        grads = job.declare(FSDP, data_path="stats")
        grads.write("w", [1.0, 1.0])
        # Equal sums: only the maximum differs, or the fingerprint.
        grads.write("b", Row.of([3.0, 4.0], fingerprint=7 + rank))
        return grads.finish()

    assert [r.divergence for r in ranks(2, body)] == [(gradsync.Divergence("b", (1,), (), (0, 1)),)] * 2


@pytest.mark.parametrize("halves", [False, True])
def test_a_divergence_raises_on_every_rank_where_that_was_asked_for(halves: bool, ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[str, tuple[str, ...], float]:
        grads = job.declare(FSDP, data_path="stats", clip=Clip(max_norm=1.0), divergence="raise")
        grads.write("w", [1.0, 1.0])
        grads.write("b", [3.0, 4.0 + rank])
        if halves:
            assert grads.compute_norm().divergence
        with pytest.raises(gradsync.GradientsDiverged) as caught:
            grads.apply_clip() if halves else grads.finish()
        for name in ("w", "b"):
            grads.write(name, [1.0, 1.0])
        return str(caught.value), caught.value.tensors, grads.finish().norm

    found = ranks(2, body)
    assert found == [found[0]] * 2
    text, tensors, norm = found[0]
    assert text.startswith("step 0: gradients that must be equal differ: 'b' between ranks 0, 1; ")
    assert (tensors, norm) == (("b",), f32(math.sqrt(6)))


def test_a_nan_on_a_replica_that_is_not_counted_is_everybodys(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> gradsync.StepReport:
        grads = job.declare(FSDP, data_path="stats")
        grads.write("w", [1.0, 1.0])
        grads.write("b", [1.0, math.nan if rank == 1 else 1.0])
        return grads.finish()

    for report in ranks(2, body):
        assert math.isnan(report.norm)
        assert report.found_inf
        assert [n.tensor for n in report.nonfinite] == ["b"]


def test_a_gradient_that_one_rank_misses_is_listed(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> gradsync.StepReport:
        grads = job.declare(FSDP, data_path="stats")
        grads.write("w", None if rank == 1 else [3.0, 4.0])
        grads.write("b", None)
        return grads.finish()

    for report in ranks(2, body):
        assert report.norm == 5.0
        assert report.missing == (gradsync.Missing("w", (1,)),)
        assert report.absent == ("b",)


def test_halves_and_a_norm_of_the_step(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[float, float]:
        grads = job.declare(FSDP, data_path="stats", formula="torch")
        grads.write("w", [3.0, 0.0] if rank == 0 else [0.0, 4.0])
        grads.write("b", [0.0, 0.0])
        return grads.compute_norm().norm, grads.apply_clip(max_norm=2.5).coefficient

    assert ranks(2, body) == [(5.0, pytest.approx(0.5, rel=1e-6))] * 2


def test_a_row_that_cannot_be_true_fails_the_step_and_the_next_attempt_may_do_better(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> tuple[str, float]:
        grads = job.declare(FSDP, data_path="stats")
        grads.write("w", Row(5.0, maximum=100.0) if rank == 1 else [1.0, 1.0])
        grads.write("b", [0.0, 0.0])
        with pytest.raises(RpcError) as caught:
            grads.finish()
        grads.write("w", [1.0, 1.0])
        grads.write("b", [0.0, 0.0])
        return str(caught.value), grads.finish().norm

    for text, norm in ranks(2, body):
        assert "w" in text
        assert norm == 2.0


def test_a_rank_that_left_a_tensor_out_is_found(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        job.declare(FSDP if rank == 0 else FSDP[:1], data_path="stats")

    for error in ranks.outcomes(2, body):
        assert isinstance(error, (PlanMismatch, InvalidDeclaration))
        assert "b" in str(error)


def test_different_tensors_under_one_name_are_found_by_their_weights(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        tensor = Tensor("b", (2,), placements={"dp": Replicate()}, weight_fingerprint=f"weights={rank}")
        job.declare([tensor], data_path="stats")

    for error in ranks.outcomes(2, body):
        assert isinstance(error, WeightsDiverged)
        assert "b" in str(error)


def test_a_saved_declaration_passes_the_offline_check(address: str, tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "declaration.jsonl"

    def body(rank: int, job: gradsync.Job) -> None:
        job.declare(FSDP, data_path="stats").save_declaration(path)

    Ranks(address)(2, body)
    checked = subprocess.run([binary(), "plan", "check", str(path)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    path.write_text(path.read_text().replace('"local_shape":[2]', '"local_shape":[4]', 1))
    checked = subprocess.run([binary(), "plan", "check", str(path)], capture_output=True, text=True, timeout=60)
    assert checked.returncode != 0
    assert "local_shape" in checked.stdout + checked.stderr


def test_4096_ranks_are_checked_offline(tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "declaration.jsonl"
    tensor = Tensor("w", (4096, 2), local_shape=(64, 2), placements={"dp": Shard(0), "copy": Replicate()})
    gradsync.write_declaration(path, {"mesh": {"copy": 64, "dp": 64}}, [[tensor]] * 4096)
    checked = subprocess.run([binary(), "plan", "check", str(path)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
