"""Traces of norms as a run's tracker writes them, and what `gradsyncd policy replay` says of each step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daemon import run_command

import gradsync.trackers


def record(path: Path, norms: list[float]) -> Path:
    """As the tracker of a run writes it."""
    with gradsync.trackers.JsonlTracker(path, every=1, batch=500) as tracker:
        for step, norm in enumerate(norms):
            tracker.log(step, {"grad_norm": norm})
    return path


def replay(path: Path, *policies: str) -> list[dict[str, Any]]:
    arguments = [argument for policy in policies for argument in ("--policy", policy)]
    result = run_command("policy", "replay", str(path), *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def number(value: float | str) -> float:
    return float(value) if isinstance(value, (int, float)) else float(value.replace("Infinity", "inf"))
