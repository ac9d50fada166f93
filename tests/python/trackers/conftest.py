"""What tests of trackers share: reports without a daemon, and a log of rank 0 that does not wait a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tracked import INTERVAL_S

from gradsync import StepReport
from gradsync.trackers import _feed, _report_log
from gradsync.trackers._report_log import ReportLog


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds look into their queues often, and the end waits for a slow machine."""
    monkeypatch.setattr(_feed, "INTERVAL_S", INTERVAL_S)
    monkeypatch.setattr(_report_log, "END_S", 100.0)


@pytest.fixture
def logged(quick: None) -> Callable[..., None]:
    """Logs reports to a tracker as rank 0 of a job does, until all of it is there."""

    def log(target: object, reports: list[StepReport], **options: Any) -> None:
        log = ReportLog(0)
        log.add(target, **options)
        for one in reports:
            log.log(one.step, lambda one=one: one)
        log.close()

    return log
