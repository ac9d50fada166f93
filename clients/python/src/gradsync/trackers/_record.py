"""What trackers get of a step: names and numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradsync._step._report import Finding, StepReport
from gradsync._wire import encode_number

__all__ = ["Record", "measurements", "record_of"]


@dataclass(frozen=True, slots=True)
class Record:
    """One step for a tracker. Every value is finite."""

    step: int
    time_ms: int  #: since the epoch, when the step had its result
    values: dict[str, float]
    more: dict[str, Any]  #: what only a file of lines keeps, as JSON: see `record_of`


def measurements(report: StepReport, *, groups: bool = False, layers: bool = False) -> dict[str, float]:
    """The values of a report that are tracked: grad_norm, grad_clipped (0 or 1), grad_clip_threshold if there is one.

    All are finite: a norm that is not is left out, and grad_nonfinite is 1. In mode observe also grad_norm_framework,
    and grad_norm_difference, relative to ours, where there is one. With `groups` the same of each clip group, as
    grad_norm_group/NAME; with `layers` grad_norm_layer/NAME. A slash in a NAME becomes a dot.
    """
    values = dict(_of_one("", report.norm, report.threshold, report.clipped))
    if not math.isfinite(report.norm):
        values["grad_nonfinite"] = 1.0
    if report.theirs is not None:
        values["grad_norm_framework"] = report.theirs
    if report.relative_difference is not None:
        values["grad_norm_difference"] = report.relative_difference
    if groups:
        for group in report.groups:
            values.update(_of_one(f"_group/{_leaf(group.name)}", group.norm, group.threshold, group.clipped))
    if layers:
        values.update((f"grad_norm_layer/{_leaf(layer.name)}", layer.norm) for layer in report.layers)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def record_of(step: int, report: StepReport, *, groups: bool, layers: bool, more: bool) -> Record:
    """The record of a report. With `more` also what a line has beside numbers: a norm that is not finite, as a text;
    `findings`, with `says` in words; `watch`, which is what policies that only watch would have done."""
    values = measurements(report, groups=groups, layers=layers)
    return Record(step, time.time_ns() // 1_000_000, values, _more(report) if more else {})


def _of_one(suffix: str, norm: float, threshold: float, clipped: bool) -> Iterator[tuple[str, float]]:
    yield f"grad_norm{suffix}", norm
    yield f"grad_clipped{suffix}", float(clipped)
    yield f"grad_clip_threshold{suffix}", threshold


def _leaf(name: str) -> str:
    """MLflow keeps a metric as a file of that name, so none may be a folder of another."""
    return name.replace("/", ".")


def _more(report: StepReport) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if not math.isfinite(report.norm):
        more["grad_norm"] = encode_number(report.norm)
    if report.action != "step":
        more["action"] = report.action
    found = dict(_findings(report))
    if found:
        more["findings"] = [*found]
        more["says"] = [text for text in found.values() if text]
    watch = [
        {"group": group.name, "policy": one.policy, "threshold": encode_number(one.threshold), "clipped": one.clipped}
        for group in report.groups
        for one in group.watch
    ]
    return more | ({"watch": watch} if watch else {})


def _findings(report: StepReport) -> Iterator[tuple[Finding, str]]:
    if report.found_inf or report.nonfinite or not math.isfinite(report.norm):
        yield "nonfinite", "; ".join(map(str, report.nonfinite[:3]))
    if report.divergence:
        yield "divergence", "; ".join(map(str, report.divergence[:3]))
    if report.missing:
        yield "missing", "; ".join(f"'{one.tensor}' on {list(one.ranks)}" for one in report.missing[:3])
    if any(group.spike for group in report.groups):
        yield "spike", ""
