"""The opt-in gauges of jobs in /metrics: only as many jobs as were allowed, and none that is gone."""

from __future__ import annotations

import re
import time

import pytest
from daemon import Daemon, get
from raw import REPLICATED, RawRank

NORM, THRESHOLD = "gradsync_job_grad_norm", "gradsync_job_grad_clip_threshold"


def gauges(daemon: Daemon, name: str) -> dict[str, float]:
    """The value of each job."""
    time.sleep(1.05)  # the daemon makes the page once a second at most
    status, text = get(daemon.health(), "/metrics")
    assert status == 200
    found = re.findall(rf'^{name}{{job="(.*)",uid="\d+"}} (\S+)$', text, re.MULTILINE)
    return {job: float(value) for job, value in found}


def declare(rank: RawRank, max_norm: float) -> None:
    rank.allocate(64)
    rank.numel = 4
    tensor = {"name": "w", "shape": [4], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
    clip = [{"group": "all", "max_norm": max_norm}]
    rank.declared(rank.ask("gradients.declare", buffer=rank.buffer, tensors=[tensor], options={"clip": clip}))


def step(rank: RawRank, number: int, value: float) -> None:
    rank.fill(value)
    rank.finished(rank.ask_finish(number))


def test_a_job_has_gauges_as_long_as_it_lives_and_only_so_many_have() -> None:
    with (
        Daemon("--engine-job-gauges", "1") as daemon,
        RawRank(daemon.socket, 'a "job"', 0, 1) as first,
        RawRank(daemon.socket, "second", 0, 1) as second,
    ):
        for rank in (first, second):
            declare(rank, 3.0)
            step(rank, 0, 1.0)
        assert gauges(daemon, NORM) == {r"a \"job\"": 2.0}
        assert gauges(daemon, THRESHOLD) == {r"a \"job\"": 3.0}
        step(first, 1, 4.0)
        assert gauges(daemon, NORM) == {r"a \"job\"": 8.0}
        first.call("job.detach")
        with RawRank(daemon.socket, "third", 0, 1) as third:
            declare(third, 1.0)
            step(third, 0, 2.0)
            assert gauges(daemon, NORM) == {"third": 4.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_is_shown_as_such(value: float) -> None:
    with Daemon("--engine-job-gauges", "8") as daemon, RawRank(daemon.socket, "one", 0, 1) as rank:
        declare(rank, 3.0)
        step(rank, 0, value)
        (norm,) = gauges(daemon, NORM).values()
        assert str(norm) == str(value)


def test_by_default_no_job_is_named() -> None:
    with Daemon() as daemon, RawRank(daemon.socket, "one", 0, 1) as rank:
        declare(rank, 3.0)
        step(rank, 0, 1.0)
        _, text = get(daemon.health(), "/metrics")
        assert "gradsync_job_grad" not in text
        assert "gradsync_steps_committed_total 1" in text
