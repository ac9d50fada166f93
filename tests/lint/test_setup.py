"""What scripts/setup.sh installs for the demo, and what it says on systems whose packages have other names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

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
    names = {line.split("==")[0] for line in (SCRIPTS / "requirements" / "demo.txt").read_text().splitlines()}
    assert {"torch", "websockets"} <= names
    assert not names & {"build", "hypothesis", "mypy", "pytest", "pytest-timeout", "pytest-xdist", "ruff"}


UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nVERSION_CODENAME=noble\n'
# In a mount namespace of its own the system looks like another one.
AS_UBUNTU = ["unshare", "--map-root-user", "--mount", "bash", "-ec"]
MOUNT = 'mount --bind "$0" /etc/os-release && exec "$1"'


def test_other_systems_are_told_of_the_wheel(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text(UBUNTU)
    for name, code in {
        "dpkg-query": "exit 1",
        "apt-get": "echo apt-get was called; exit 99",
        "sudo": "exit 99",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")  # no package is there, and none may be installed
        (tmp_path / name).chmod(0o755)
    if subprocess.run([*AS_UBUNTU, MOUNT, release, "/bin/true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    command = [*AS_UBUNTU, MOUNT, release, SCRIPTS / "setup.sh"]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60)
    assert said.returncode == 69, said.stdout + said.stderr
    sentence = " ".join(said.stderr.split())
    assert sentence.startswith("setup: this is Ubuntu 24.04.1 LTS, and the packages are named as in Debian 12")
    assert "'make dist' on Debian 12, also in a container, writes a wheel" in sentence
    assert "apt-get was called" not in said.stdout
    listed = sentence.split("install yourself what these packages hold: ")[1].split()
    assert set(listed) == DEMO | ALL
