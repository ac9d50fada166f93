"""Trackers: the names, the pace, and that an outage stays outside."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_daemon import report

from gradsync._step._report import decode_report
from gradsync.trackers import JsonlTracker, Logger, measurements


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def step_report(step: int, **fields: object):
    return decode_report(report(step, **fields), str)


def test_the_names_are_those_of_the_dashboards() -> None:
    assert measurements(step_report(3, norm=2.5, threshold=1, clipped=True)) == {
        "grad_norm": 2.5,
        "grad_clip_threshold": 1.0,
        "grad_clipped": 1.0,
    }


def test_no_threshold_is_no_value_rather_than_an_infinite_one() -> None:
    assert "grad_clip_threshold" not in measurements(step_report(3, norm=2.5, threshold=math.inf))
    assert measurements(step_report(3, norm=2.5, threshold=0))["grad_clip_threshold"] == 0.0


def test_the_frameworks_norm_is_tracked_where_there_is_one() -> None:
    seen = replace(step_report(3, norm=2.0), theirs=3.0)
    assert measurements(seen) | {"grad_norm_framework": 3.0, "grad_norm_difference": 0.5} == measurements(seen)
    dropped = measurements(replace(step_report(3, norm=0.0), theirs=9.07))
    assert dropped["grad_norm_framework"] == 9.07
    assert "grad_norm_difference" not in dropped


def test_every_fiftieth_step_of_rank_0_is_tracked(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    for rank in (0, 1):
        with JsonlTracker(path) as tracker:
            logger = Logger(tracker, rank=rank)
            for step in range(120):
                logger.log(step_report(step))
    assert [line["step"] for line in lines_of(path)] == [0, 50, 100]
    assert lines_of(path)[0] == {"step": 0, "grad_norm": 2.0, "grad_clipped": 0.0}


def test_lines_are_batched_and_flushed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    with JsonlTracker(path, every=1, batch=3) as tracker:
        tracker.log(0, {"grad_norm": math.nan})
        tracker.log(1, {"grad_norm": 1.0})
        assert not path.exists()
        tracker.log(2, {"grad_norm": 1.0})
        assert len(lines_of(path)) == 3
        tracker.log(3, {"grad_norm": 1.0})
    assert [line["step"] for line in lines_of(path)] == [0, 1, 2, 3]
    assert lines_of(path)[0]["grad_norm"] == "NaN"


def test_an_outage_warns_once_and_what_was_kept_is_written_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "absent" / "curve.jsonl"
    tracker = JsonlTracker(path, every=1)
    with caplog.at_level(logging.WARNING, "gradsync"):
        tracker.log(0, {"grad_norm": 1.0})
        tracker.log(1, {"grad_norm": 1.0})
        tracker.log(1, {"grad_norm": object()})  # type: ignore[dict-item]
    assert len(caplog.records) == 1
    path.parent.mkdir()
    tracker.log(2, {"grad_norm": 1.0})
    assert [line["step"] for line in lines_of(path)] == [0, 1, 2]


def test_a_full_disk_does_not_raise() -> None:
    JsonlTracker("/dev/full", every=1).log(0, {"grad_norm": 1.0})


def test_a_tracker_that_raises_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        calls = 0

        def log(self, step: int, values: object) -> None:
            self.calls += 1
            raise RuntimeError("no network")

    broken = Broken()
    logger = Logger(broken, every=1)
    for step in range(3):
        logger.log(step_report(step))
    assert broken.calls == 3
    assert [record.getMessage() for record in caplog.records if "no network" in record.getMessage()] != []
    assert len(caplog.records) == 1
