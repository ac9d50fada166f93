"""Reports without a daemon, for tests of trackers."""

from __future__ import annotations

from typing import Any

from fake_daemon import report

from gradsync import StepReport
from gradsync._step._report import decode_report

__all__ = ["INTERVAL_S", "step_report"]

INTERVAL_S = 0.02


def step_report(step: int, **fields: Any) -> StepReport:
    """A report of a job with one clip group, whose numbers are those of the whole."""
    whole = report(step, **fields)
    group = {**whole["groups"][0], **{name: whole[name] for name in ("norm", "threshold", "clipped")}}
    return decode_report({**whole, "groups": fields.get("groups", [group])}, str)
