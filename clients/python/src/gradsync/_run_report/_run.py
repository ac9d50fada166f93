"""A run as its log has it: a file of JSON lines, or a run of MLflow."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsync.errors import UsageError

__all__ = ["Point", "Run", "read_run"]

_RUN_ID = re.compile(r"(?:mlflow:|runs:/)?([0-9a-f]{32})")
_METRICS = ("grad_norm", "grad_clip_threshold", "grad_clipped", "grad_nonfinite", "grad_norm_framework")


@dataclass(frozen=True, slots=True)
class Point:
    """One logged step. `theirs` is the framework's own norm; None: it was not logged."""

    step: int
    norm: float  #: before clipping; NaN or infinite where it was
    threshold: float = math.inf  #: none where it is infinite
    clipped: bool = False
    theirs: float | None = None
    findings: tuple[str, ...] = ()
    says: tuple[str, ...] = ()  #: of the findings, in words


@dataclass(frozen=True, slots=True)
class Run:
    """What was logged, in the order of steps; a step that was logged again, after a restart, counts once."""

    name: str
    points: tuple[Point, ...]
    again: int  #: records of steps that were logged again

    @property
    def every(self) -> int:
        """The most frequent distance of two logged steps."""
        gaps = Counter(b.step - a.step for a, b in zip(self.points, self.points[1:], strict=False))
        return gaps.most_common(1)[0][0] if gaps else 1

    @property
    def clipped(self) -> list[Point]:
        return [point for point in self.points if point.clipped]

    @property
    def nonfinite(self) -> list[Point]:
        return [point for point in self.points if not math.isfinite(point.norm)]

    @property
    def findings(self) -> dict[str, list[Point]]:
        """The steps that have something to say, by what they say."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            for kind in point.findings:
                found.setdefault(kind, []).append(point)
        return found


def read_run(given: str) -> Run:
    """Reads `RUN.jsonl`, `mlflow:RUN_ID` or `RUN_ID`.

    Raises:
        UsageError: there is no such run, or it has no norms.
    """
    named = _RUN_ID.fullmatch(given)
    run = _of_mlflow(named.group(1)) if named is not None and not Path(given).exists() else _of_lines(Path(given))
    if not any(math.isfinite(point.norm) for point in run.points):
        raise UsageError(f"{given}: no step has a finite norm; log it by log_to(…), or gradsync observe --jsonl")
    return run


def _run(name: str, points: Iterable[Point]) -> Run:
    by_step: dict[int, Point] = {}
    count = 0
    for point in points:
        by_step[point.step] = point
        count += 1
    return Run(name, tuple(by_step[step] for step in sorted(by_step)), count - len(by_step))


def _of_lines(path: Path) -> Run:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); give a file of JSON lines, or mlflow:RUN_ID") from error
    points = []
    for number, line in enumerate(lines, 1):
        try:
            point = _point(json.loads(line)) if line.strip() else None
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines):  # a process that was killed while it wrote
                break
            raise UsageError(f"{path}:{number}: {error}; a line is a JSON object with step and grad_norm") from error
        if point is not None:
            points.append(point)
    return _run(path.name, points)


def _point(line: Mapping[str, Any]) -> Point | None:
    """The step of a line of `log_to`, or of `gradsync observe`; None: it is of something else."""
    norm = line.get("grad_norm", line.get("norm"))
    if norm is None or "step" not in line:
        return None
    theirs = line.get("grad_norm_framework", line.get("theirs"))
    return Point(
        step=int(line["step"]),
        norm=float(norm),
        threshold=float(line.get("grad_clip_threshold", math.inf)),
        clipped=bool(line.get("grad_clipped", False)),
        theirs=None if theirs is None else float(theirs),
        findings=tuple(map(str, line.get("findings", ()))),
        says=tuple(map(str, line.get("says", ()))),
    )


def _of_mlflow(run_id: str) -> Run:
    try:
        mlflow: Any = importlib.import_module("mlflow")
    except ImportError as error:
        raise UsageError(f"a run of MLflow is read by mlflow, which cannot be imported: {error}") from error
    client = mlflow.MlflowClient()
    try:
        name = client.get_run(run_id).info.run_name or run_id
        histories = {metric: client.get_metric_history(run_id, metric) for metric in _METRICS}
    except mlflow.exceptions.MlflowException as error:
        raise UsageError(f"MLflow at {mlflow.get_tracking_uri()} has no run {run_id} ({error.message})") from error
    steps: dict[int, dict[str, float]] = {}
    for metric, history in histories.items():
        for one in sorted(history, key=lambda one: int(one.timestamp)):
            steps.setdefault(int(one.step), {})[metric] = float(one.value)
    return _run(name, (_point_of_metrics(step, values) for step, values in steps.items()))


def _point_of_metrics(step: int, values: Mapping[str, float]) -> Point:
    return Point(
        step=step,
        norm=values.get("grad_norm", math.nan),
        threshold=values.get("grad_clip_threshold", math.inf),
        clipped=values.get("grad_clipped", 0.0) > 0,
        theirs=values.get("grad_norm_framework"),
        findings=("nonfinite",) if values.get("grad_nonfinite") else (),
    )
