"""What scripts/setup.sh installs for the demo, and what it says on systems whose packages have other names."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SETUP = (SCRIPTS / "setup.sh").read_text()
DEMO = set(re.search(r"^packages=\((.*?)\)", SETUP, re.MULTILINE | re.DOTALL)[1].split())
ALL = set(re.search(r"^    packages\+=\((.*?)\)", SETUP, re.MULTILINE)[1].split())


def test_the_demo_installs_no_tool_of_the_tests() -> None:
    assert {"cmake", "g++", "ninja-build", "python3-venv"} <= DEMO
    tools = {
        "clang-format-16",
        "dpkg-dev",
        "libbenchmark-dev",
        "libgmock-dev",
        "libgtest-dev",
        "python3-dev",
        "shellcheck",
    }
    assert tools == ALL
    assert not tools & DEMO


def test_the_demos_environment_has_no_tool_of_the_tests() -> None:
    names = {line.split("==")[0] for line in (SCRIPTS / "requirements-demo.txt").read_text().splitlines()}
    assert {"torch", "websockets"} <= names
    assert not names & {"build", "hypothesis", "mypy", "pytest", "pytest-timeout", "pytest-xdist", "ruff"}


def test_other_systems_are_told_of_the_wheel() -> None:
    (sentence,) = re.findall(r'refuse "(this is [^"]*)"', SETUP)
    assert "make dist" in sentence
    assert "wheel" in sentence
    assert "pip install" in sentence
