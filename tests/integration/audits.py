"""Runs `gradsync audit` on a training script, for the tests of what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from audit_scripts import STEPS
from daemon import BINARY, clean_environment

DEADLINE_S = 100.0
SCRIPTS = str(Path(__file__).with_name("audit_scripts.py"))


def audit(
    *command: str, options: tuple[str, ...] = (), json_file: Path | None = None, **environment: str
) -> tuple[int, str, dict[str, Any]]:
    extra = () if json_file is None else ("--json", str(json_file))
    done = subprocess.run(
        [sys.executable, "-m", "gradsync", "audit", "--steps", str(STEPS), *options, *extra, "--", *command],
        env=clean_environment(**{"GRADSYNCD": BINARY, "OMP_NUM_THREADS": "1"} | environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    found = json.loads(json_file.read_text()) if json_file is not None and json_file.exists() else {}
    return done.returncode, done.stdout + done.stderr, found


def ranks_of(count: int, name: str, script: str = SCRIPTS) -> list[str]:
    return [sys.executable, script, "ranks", str(count), name]


def whole(found: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = found["lines"][0]
    assert line["name"] == "whole model"
    return line
