"""mypy --strict and ruff, with the settings of the package; tests have those of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "clients" / "python"
TESTS = Path(__file__).parent


def check(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=PACKAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_mypy_strict(tmp_path: Path) -> None:
    check("mypy", "--cache-dir", str(TESTS.parents[1] / "build" / "mypy_cache"))


def test_ruff_check() -> None:
    check("ruff", "check", "--no-cache", "src")


def test_ruff_format() -> None:
    check("ruff", "format", "--no-cache", "--check", "src")


def test_ruff_on_the_tests() -> None:
    check("ruff", "check", "--no-cache", *map(str, TESTS.glob("*.py")))
    check("ruff", "format", "--no-cache", "--check", *map(str, TESTS.glob("*.py")))
