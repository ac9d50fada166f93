"""Jobs on a real gradsyncd: what is declared, asked and told around the steps."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import pytest
from real_daemon import JOIN_S, MEAN, SUM, Ranks, all_ready

import gradsync
from gradsync import Tensor
from gradsync.errors import (
    UnknownJob,
)


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
