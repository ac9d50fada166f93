"""The runner of the fuzzers: what it makes of one that ends well, one that breaks and a machine without clang."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GOOD = """#!/bin/sh
echo "$@" >&2
echo "stat::number_of_executed_units: 12" >&2
"""
BREAKS = """#!/bin/sh
for word in "$@"; do case $word in -artifact_prefix=*) prefix=${word#-artifact_prefix=};; esac; done
printf 'bad\\001' >"${prefix}crash-1"
echo "ERROR: AddressSanitizer: heap-use-after-free" >&2
exit 77
"""


def run(
    tmp_path: Path, programs: dict[str, str], *more: str
) -> tuple[subprocess.CompletedProcess[str], list[ET.Element]]:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, text in programs.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    junit = tmp_path / "fuzz.xml"
    command = [sys.executable, "scripts/fuzz.py", "--bin", str(binaries), "--state", str(tmp_path / "state")]
    done = subprocess.run(
        [*command, "--seconds", "1", "--junit", str(junit), *more, *programs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, list(ET.parse(junit).getroot().iter("testcase"))


def test_one_that_ends_well_has_passed(tmp_path: Path) -> None:
    done, cases = run(tmp_path, {"http_fuzz": GOOD})
    assert done.returncode == 0, done.stdout
    assert "http_fuzz: 12 inputs" in done.stdout
    assert [case.get("name") for case in cases] == ["http_fuzz"]
    assert cases[0].find("failure") is None


def test_the_seed_is_handed_on(tmp_path: Path) -> None:
    run(tmp_path, {"http_fuzz": GOOD}, "--seed", "7")
    assert " -seed=7 " in (tmp_path / "state" / "http_fuzz.log").read_text()


def test_a_check_that_has_little_time_left_fuzzes_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECK_ENDS", str(time.time() + 66))
    done, _ = run(tmp_path, {"http_fuzz": GOOD, "rpc_fuzz": GOOD}, "--seconds", "60", "--jobs", "1")
    assert "each for 11 s instead of 60" in done.stdout or "each for 10 s instead of 60" in done.stdout
    assert re.search("-max_total_time=1[01] ", (tmp_path / "state" / "http_fuzz.log").read_text())


def test_one_that_breaks_shows_the_input_and_where_it_lies(tmp_path: Path) -> None:
    done, cases = run(tmp_path, {"http_fuzz": GOOD, "rpc_fuzz": BREAKS})
    assert done.returncode == 1
    assert str(tmp_path / "state" / "crashes" / "rpc_fuzz-crash-1") in done.stdout
    assert r"b'bad\x01'" in done.stdout
    assert "heap-use-after-free" in done.stdout
    failures = [case.find("failure") for case in cases]
    assert failures[0] is None
    assert failures[1] is not None
    assert "exit code 77" in (failures[1].get("message") or "")


def test_one_that_runs_nothing_has_failed(tmp_path: Path) -> None:
    done, _ = run(tmp_path, {"http_fuzz": "#!/bin/sh\n"})
    assert done.returncode == 1
    assert "ran no input" in done.stdout


def test_without_clang_every_one_is_skipped(tmp_path: Path) -> None:
    done, cases = run(tmp_path, {}, "--skip", "clang++-16 is missing")
    assert done.returncode == 0
    assert "skipped: clang++-16 is missing" in done.stdout
    names = {path.stem for path in (ROOT / "tests" / "fuzz").rglob("*_fuzz.cpp")}
    assert {case.get("name") for case in cases} == names
    assert all(case.find("skipped") is not None for case in cases)
