"""Runs of `gradsync observe` on training scripts in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from daemon import BINARY, clean_environment

DEADLINE_S = 110.0
PATIENT = ("--patience", "60")  # whatever else the machine does
SCRIPTS = str(Path(__file__).with_name("observe_scripts.py"))
AUDITED = str(Path(__file__).with_name("audit_scripts.py"))


class Run:
    """One run of the command: its exit code, what it said, its summary, and a line per step."""

    def __init__(self, folder: Path, *command: str, options: tuple[str, ...] = PATIENT, **environment: str) -> None:
        summary, lines = folder / "summary.json", folder / "lines.jsonl"
        written = ("--json", str(summary), "--jsonl", str(lines))
        done = subprocess.run(
            [sys.executable, "-m", "gradsync", "observe", *options, *written, "--", *command],
            env=clean_environment(**{"GRADSYNCD": BINARY, "OMP_NUM_THREADS": "1"} | environment),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        self.code, self.said, self.printed = done.returncode, done.stdout + done.stderr, done.stdout
        self.warnings = [text for text in done.stderr.splitlines() if text.startswith("gradsync observe: ")]
        self.summary: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
        self.lines = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def ranks(name: str, script: str = SCRIPTS) -> list[str]:
    return [sys.executable, script, "ranks", "2", name]
