"""The client against a real gradsyncd: ranks are threads, each with a connection of its own."""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy
import pytest

import gradsync
from gradsync import Clip, Partial, Replicate, Tensor
from gradsync.errors import (
    AccumulationError,
    DeclareTimeout,
    InvalidDeclaration,
    PlanMismatch,
    RankInUse,
    RankLost,
    RpcError,
    StepMismatch,
    StepTimeout,
    UnknownJob,
)

JOIN_S = 50.0
MEAN = {"dp": Partial("mean") >> Replicate()}
SUM = {"dp": Partial("sum") >> Replicate()}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def binary() -> str:
    """$GRADSYNCD, else what was built here; never one that happens to be installed."""
    built = Path(__file__).parents[2] / "build" / "cpu-release" / "bin" / "gradsyncd"
    chosen = os.environ.get("GRADSYNCD", str(built))
    if not os.access(chosen, os.X_OK):
        pytest.skip(f"{chosen} is not there: build it, or set GRADSYNCD")
    return chosen


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A daemon for this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", binary())
        with gradsync.connect(spawn=True) as client:
            yield client.address


class Ranks:
    """Runs `body(rank, job)` on N threads of one job."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.job = f"test-{secrets.token_hex(4)}"

    def outcomes(self, count: int, body: Callable[[int, gradsync.Job], Any]) -> list[Any]:
        """What each rank returned or raised."""
        results: list[Any] = [None] * count

        def run(rank: int) -> None:
            try:
                with gradsync.connect(self.address) as client:
                    results[rank] = body(rank, client.attach(job=self.job, rank=rank, world_size=count))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), "a rank hangs"
        return results

    def __call__(self, count: int, body: Callable[[int, gradsync.Job], Any]) -> list[Any]:
        results = self.outcomes(count, body)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


@pytest.fixture
def ranks(address: str) -> Ranks:
    return Ranks(address)


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


def all_ready(grads: gradsync.Grads) -> None:
    for tensor in grads.tensors:
        grads.ready(tensor.name)


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


@pytest.mark.parametrize("mode", ["strict", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_multiplies_once_and_rounds_once(dtype: str, mode: str, ranks: Ranks) -> None:
    shape = (37, 11)

    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, numpy.ndarray]:
        grads = job.declare(
            [Tensor("w", shape, dtype=dtype, placements=SUM)],
            clip=Clip(max_norm=0.7),
            mode=mode,  # type: ignore[arg-type]
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
        if mode == "torch":  # as torch evaluates it: reciprocal, then times
            coefficient = wide(1) / (norm + wide(1e-6)) * wide(0.7)
            assert report.coefficient == float(coefficient)
        else:
            coefficient = wide(report.coefficient)
            assert float(coefficient) == report.coefficient
            assert float(coefficient) * float(norm) <= 0.7
            assert float(coefficient) == pytest.approx(0.7 / float(norm), rel=1e-6)
        expected = total * coefficient if dtype == "float64" else total.astype("f4") * coefficient
        assert output.tobytes() == round_to(expected, dtype).tobytes()


def test_torch_mode_equals_torch_bit_for_bit(ranks: Ranks) -> None:
    torch = pytest.importorskip("torch")
    sizes = [(64, 3), (5,), (1,)]

    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, list[Any]]:
        generator = numpy.random.default_rng(rank)
        tensors = [Tensor(f"t{index}", shape, placements=MEAN) for index, shape in enumerate(sizes)]
        grads = job.declare(tensors, clip=Clip(max_norm=0.5), mode="torch")
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


def test_a_declaration_of_several_pages_and_its_plan(ranks: Ranks) -> None:
    asked = threading.Barrier(2)  # a rank that leaves ends the epoch and its plan

    def body(rank: int, job: gradsync.Job) -> tuple[gradsync.StepReport, dict[str, Any], list[float]]:
        tensors = [Tensor(f"layer.{index}.{'x' * 480}", (index % 7, 3), placements=MEAN) for index in range(2500)]
        grads = job.declare(tensors)
        for index, tensor in enumerate(tensors):
            grads.input(tensor.name).numpy()[:] = index
            grads.ready(tensor.name)
        report = grads.finish()
        values = [float(grads.output(t.name).numpy().sum()) for t in tensors]
        plan = grads.explain()
        asked.wait(JOIN_S)
        return report, plan, values

    (_, plan, values), (_, _, other) = ranks(2, body)
    assert values == other == [float(index * (index % 7) * 3) for index in range(2500)]
    assert plan["total"] == len(plan["tensors"]) == 2500
    assert plan["tensors"][7]["name"].startswith("layer.7.")


def test_declaring_anew_goes_on_with_new_memory(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[Any]:
        seen = []
        for size in (10, 100_000):
            grads = job.declare([Tensor("w", (size,), placements=SUM)])
            grads.input("w").numpy()[:] = rank + 1
            grads.ready("w")
            seen.append((grads.finish().step, float(grads.output("w").numpy().sum())))
        return seen

    assert ranks(2, body) == [[(0, 30.0), (1, 300_000.0)]] * 2


def test_pause_status_stats_and_events(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        reports: list[Any] = []
        came = threading.Event()

        def callback(params: dict[str, Any]) -> None:
            reports.append(params["event"])
            came.set()

        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        with job.client.subscribe(["step"], callback, job=job.name):
            with job.pause():
                (status,) = [j for j in job.client.status()["jobs"] if j["job"] == job.name]
                assert [r["paused"] for r in status["ranks"]] == [True]
            all_ready(grads)
            report = grads.finish()
            assert came.wait(JOIN_S)
        assert reports[0]["step"] == report.step == 0
        assert [r.step for r in job.client.stats()] == [0]
        with pytest.raises(UnknownJob):
            job.client.stats("no such job")

    ranks(1, body)


def test_the_data_path_is_in_every_report_and_status(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    from gradsync.__main__ import main

    def body(rank: int, job: gradsync.Job) -> None:
        events: Queue[dict[str, Any]] = Queue()
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        with job.client.subscribe(["step"], lambda params: events.put(params["event"]), job=job.name):
            all_ready(grads)
            reports = [grads.finish()]
            all_ready(grads)
            reports += [grads.compute_norm(), grads.apply_clip(1.0), *job.client.stats(last=2)]
            assert [r.data_path for r in reports] == ["arena"] * 5
            assert [events.get(timeout=JOIN_S)["data_path"] for _ in range(2)] == ["arena"] * 2
        (status,) = [j for j in job.client.status()["jobs"] if j["job"] == job.name]
        assert status["data_path"] == "arena"
        assert main(["--address", job.client.address]) == 0

    ranks(1, body)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if ranks.job in line]
    assert "data path arena" in line


# refusals and failures


def test_ranks_that_declare_different_things_are_told_the_first_difference(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        job.declare([Tensor("same", (2,), placements=SUM), Tensor("w", (2 + rank,), placements=SUM)])

    for error in ranks.outcomes(2, body):
        assert isinstance(error, PlanMismatch)
        assert "w" in str(error)


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (Tensor("w", (2,)), InvalidDeclaration),
        (Tensor("w", (2,), placements={"tp": Replicate()}), InvalidDeclaration),
        (Tensor("w", (2,), placements={"dp": Partial("mean") >> Replicate()}, divisor=2), InvalidDeclaration),
        (
            Tensor("w", (2,), placements={"dp": Partial() >> gradsync.Shard(0)}, split_order=("tp",)),
            InvalidDeclaration,
        ),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_path(tensor: Tensor, error: type[RpcError], ranks: Ranks) -> None:
    (mine, _) = ranks.outcomes(2, lambda rank, job: job.declare([tensor]) if rank == 0 else None)
    assert isinstance(mine, error), mine
    assert mine.path is not None
    assert mine.path.startswith("tensors[0]")


def test_a_declaration_without_the_others_times_out_and_names_them(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        if rank == 0:
            job.declare([Tensor("w", (2,), placements=SUM)], timeout=0.2)

    error, _ = ranks.outcomes(2, body)
    assert isinstance(error, DeclareTimeout)
    assert 1 in error.ranks


def test_ranks_that_disagree_on_the_step_are_told_and_may_try_again(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> int:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        all_ready(grads)
        with pytest.raises(StepMismatch):
            grads.finish(step=rank)
        all_ready(grads)
        return grads.finish(step=7).step

    assert ranks(2, body) == [7, 7]


def test_a_step_without_the_others_times_out_for_all_and_may_be_tried_again(ranks: Ranks) -> None:
    failed = threading.Event()

    def body(rank: int, job: gradsync.Job) -> Any:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        all_ready(grads)
        if rank == 0:
            with pytest.raises(StepTimeout) as caught:
                grads.finish(timeout=0.2)
            failed.set()
            assert caught.value.ranks == (1,)
        else:
            assert failed.wait(JOIN_S)
            with pytest.raises(StepTimeout):  # the recorded outcome of the attempt it belongs to
                grads.finish()
        all_ready(grads)
        return grads.finish().step

    assert ranks(2, body) == [0, 0]


def test_a_live_rank_of_another_process_is_in_use(ranks: Ranks, address: str) -> None:
    program = (
        "import sys, gradsync\n"
        "client = gradsync.connect(sys.argv[1])\n"
        "try:\n    client.attach(job=sys.argv[2], rank=0, world_size=1)\n"
        "except gradsync.errors.RankInUse as error:\n    print('in use', error.hint != '')\n"
        "client.close()\n"
    )

    def body(rank: int, job: gradsync.Job) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, address, job.name], capture_output=True, text=True, check=True
        ).stdout

    assert ranks(1, body) == ["in use True\n"]
    assert RankInUse.KIND == "rank_in_use"


VICTIM = """
import sys, gradsync
from gradsync import Partial, Replicate, Tensor
client = gradsync.connect(sys.argv[1])
job = client.attach(job=sys.argv[2], rank=1, world_size=2)
grads = job.declare([Tensor("w", (2,), placements={"dp": Partial("sum") >> Replicate()})])
for _ in range(int(sys.argv[3])):
    grads.input("w").numpy()[:] = 1
    grads.ready("w")
    print(grads.finish().step, flush=True)
print("waiting", flush=True)
sys.stdin.read()
client.close()
"""


def start_victim(address: str, job: str, steps: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", VICTIM, address, job, str(steps)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_rank_is_named_and_a_new_process_takes_its_place(address: str) -> None:
    name = f"test-{secrets.token_hex(4)}"
    with gradsync.connect(address) as client, start_victim(address, name, 1) as victim:
        job = client.attach(job=name, rank=0, world_size=2)
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        grads.input("w").numpy()[:] = 1
        grads.ready("w")
        assert grads.finish().step == 0
        assert victim.stdout is not None
        assert [victim.stdout.readline() for _ in range(2)] == ["0\n", "waiting\n"]
        grads.ready("w")
        victim.send_signal(signal.SIGKILL)
        with pytest.raises(RankLost) as caught:
            grads.finish()
        assert caught.value.ranks == (1,)
        assert job.epoch == caught.value.epoch
        victim.wait(JOIN_S)
        with start_victim(address, name, 1) as heir:
            grads.input("w").numpy()[:] = 2
            grads.ready("w")
            report = grads.finish()
            assert (report.step, grads.output("w").numpy().tolist()) == (1, [3, 3])
            heir.communicate("", timeout=JOIN_S)


def test_a_lost_connection_is_resumed_in_the_middle_of_a_job(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[int]:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        steps = []
        for step in range(6):
            grads.input("w").numpy()[:] = 1
            if step % 2 == rank:
                job.client._channel._connection._held.socket.shutdown(2)  # SHUT_RDWR: as if the connection broke
            grads.ready("w")
            steps.append(grads.finish().step)
            assert grads.output("w").numpy().tolist() == [2, 2]
        return steps

    assert ranks(2, body) == [list(range(6))] * 2


def test_a_finish_that_waits_survives_its_connection(ranks: Ranks) -> None:
    waiting = threading.Event()

    def body(rank: int, job: gradsync.Job) -> tuple[int, list[float]]:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        grads.input("w").numpy()[:] = rank + 1
        grads.ready("w")
        if rank == 1:
            assert waiting.wait(JOIN_S)
            peers[0].client._channel._connection._held.socket.shutdown(2)
            peers[0].client.status()  # rank 0 is back, and its finish was sent again before this
        else:
            peers.append(job)
            threading.Thread(target=watch, args=(job,)).start()
        return grads.finish().step, grads.output("w").numpy().tolist()

    def watch(job: gradsync.Job) -> None:
        with gradsync.connect(job.client.address) as other:
            while not waiting.is_set():
                for entry in other.status()["jobs"]:
                    if entry["job"] == job.name and any(
                        r["rank"] == 0 and r["waiting_in"] == "step.finish" for r in entry["ranks"]
                    ):
                        waiting.set()

    peers: list[gradsync.Job] = []
    assert ranks(2, body) == [(0, [3, 3])] * 2


def test_spawn_ends_its_daemon_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    with gradsync.connect(spawn=True) as client:
        pid = client.server["pid"]
        path = client.address
        job = client.attach(world_size=1)
        grads = job.declare([Tensor("w", (2,))])
        grads.input("w").numpy()[:] = [3, 4]
        grads.ready("w")
        assert grads.finish().norm == 5
    assert not os.path.exists(path)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_killed_process_takes_its_spawned_daemon_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    program = (
        "import gradsync, os, sys\n"
        "client = gradsync.connect(spawn=True)\n"
        "print(client.server['pid'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        daemon = os.pidfd_open(int(trainer.stdout.readline()))
        trainer.kill()
        import select

        ended, _, _ = select.select([daemon], [], [], JOIN_S)
        os.close(daemon)
        assert ended


def test_every_rank_is_told_by_its_own_names_what_is_absent(ranks: Ranks) -> None:
    """Ranks may declare in another order; what is absent has no gradient when the optimizer steps."""
    names = [f"t{i}" for i in range(100)]

    def body(rank: int, job: gradsync.Job) -> tuple[str, ...]:
        order = names if rank == 0 else names[::-1]
        grads = job.declare([Tensor(name, (2,), placements=SUM) for name in order])
        grads.ready("t7")
        for name in names:
            if name != "t7":
                grads.mark_unused(name)
        return grads.finish().absent

    for absent in ranks.outcomes(2, body):
        assert sorted(absent) == sorted(set(names) - {"t7"})
