"""run.sh of the archive for a GPU machine, over made-up programs: its limits, and what it counts and leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "gpu"
TEN_MINUTES = 600
PARTS = ("kernels", "memcheck", "lanes", "bench", "torch", "clip", "trainers", "nodes", "experiments")
PROGRAMS = ("gpu_test", "gpu_bench", "lane_conformance_test", "gradsyncd")
ANSWERS = """case "$*" in *uuid*) echo GPU-1 ;; *) echo "GPU 0: made up (UUID: GPU-1)" ;; esac"""
# In place of Python: has torch, and finds its NCCL.
PYTHON = """case "$*" in
*"import numpy"*) echo "torch 2" ;;
"- libnccl.so.2") echo /of/torch/libnccl.so.2 ;;
*) echo "python: $*" ;;
esac"""


def write_program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """The archive's folder, in which each part passes at once."""
    folder = tmp_path / "unpacked"
    (folder / "scripts" / "gpu").mkdir(parents=True)
    shutil.copy(SCRIPTS / "bundle_run.sh", folder / "run.sh")
    shutil.copy(SCRIPTS / "programs.sh", folder / "scripts" / "gpu")
    write_program(folder / "scripts" / "gpu" / "experiments.sh", 'echo "had $BUDGET_SECONDS s"')
    for name in PROGRAMS:
        write_program(folder / "build" / "gpu" / "bin" / name, f"echo {name} ran")
    write_program(folder / "build" / "gpu" / "lib" / "libgradsync_kernels.so", "")
    write_program(folder / "tools" / "nvidia-smi", ANSWERS)
    write_program(folder / "tools" / "compute-sanitizer", "echo watched")
    write_program(folder / "tools" / "python3", PYTHON)
    (folder / "COMMIT").write_text("archive of commit 0123456789ab\n")
    (folder / "SHA256SUMS").write_text("")
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [str(folder / "run.sh"), *arguments],
        env=os.environ
        | {"OUT": str(folder / "out"), "PATH": f"{folder}/tools:/usr/bin:/bin", "PYTHON": "python3"}
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=100,
    )
    return ended.returncode, ended.stdout.splitlines()


def names_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return {Path(member.name).name for member in packed if member.isfile()}


def test_all_limits_together_are_ten_minutes(unpacked: Path) -> None:
    code, lines = run(unpacked, "--limits")
    limits = {name: int(seconds) for name, seconds in (line.split() for line in lines)}
    total = limits.pop("total")
    assert code == 0
    assert list(limits) == list(PARTS)
    (ends,) = map(int, re.findall(r"^ends=(\d+)", (SCRIPTS / "programs.sh").read_text(), re.MULTILINE))
    assert total >= sum(limits.values()) + ends * len(limits) + 30, "unpacking and looking take time, too"
    assert total <= TEN_MINUTES
    assert not (unpacked / "out").exists()


def test_every_part_runs_and_leaves_what_it_said(unpacked: Path) -> None:
    code, lines = run(unpacked)
    assert (code, lines[-1]) == (0, "9 passed, 0 failed, 0 skipped"), lines
    out = unpacked / "out"
    assert {path.name for path in out.iterdir()} == {"machine.txt", "run.log", "results.tar.gz"}
    raw = names_in(out / "results.tar.gz")
    assert {f"{part}.log" for part in PARTS} | {"machine.txt"} <= raw
    machine = (out / "machine.txt").read_text()
    assert "archive of commit 0123456789ab" in machine
    assert re.search(r"^[0-9a-f]{64}  .*/gpu_test$", machine, re.MULTILINE)
    assert re.search(r"^[0-9a-f]{64}  .*/libgradsync_kernels.so$", machine, re.MULTILINE)
    assert "torch 2" in machine
    assert (out / "run.log").read_text().splitlines() == lines


def test_what_the_others_leave_belongs_to_the_experiments(unpacked: Path) -> None:
    _, lines = run(unpacked)
    (had,) = [int(line.split()[1]) for line in lines if line.startswith("had ")]
    assert 500 < had < TEN_MINUTES - 20, "they end before the whole run has to"


def test_a_part_that_fails_does_not_end_the_run(unpacked: Path) -> None:
    programs = unpacked / "build" / "gpu" / "bin"
    write_program(programs / "gpu_test", "echo wrong; exit 3")
    write_program(programs / "gpu_bench", "kill -SEGV $$")
    (programs / "lane_conformance_test").unlink()
    code, lines = run(unpacked)
    assert (code, lines[-1]) == (1, "6 passed, 3 failed, 0 skipped"), lines
    assert "gpu: FAILED: kernels lanes bench" in lines


def test_a_part_that_hangs_is_ended(unpacked: Path) -> None:
    script = unpacked / "run.sh"
    script.write_text(script.read_text().replace("[bench]=", "[bench]=1 [was]="))
    write_program(unpacked / "build" / "gpu" / "bin" / "gpu_bench", "exec sleep 1000")
    code, lines = run(unpacked)
    assert (code, lines[-1]) == (1, "8 passed, 1 failed, 0 skipped"), lines
    assert "gpu: bench did not end within 1 s" in lines


def test_what_is_missing_skips_its_parts_and_is_named(unpacked: Path) -> None:
    code, lines = run(unpacked, PYTHON="no-such-python")
    assert (code, lines[-1]) == (0, "5 passed, 0 failed, 4 skipped"), lines
    assert [line for line in lines if line.startswith("gpu: trainers skipped: ") and "no-such-python" in line]
    write_program(unpacked / "tools" / "python3", "echo torch 2; echo torch sees no GPU >&2; exit 1")
    code, lines = run(unpacked)
    assert (code, lines[-1]) == (0, "5 passed, 0 failed, 4 skipped"), lines
    assert "gpu: torch skipped: torch sees no GPU (python3 ended with 1)" in lines


def test_nodes_get_the_library_of_torch_or_are_skipped(unpacked: Path) -> None:
    _, lines = run(unpacked)
    (started,) = [line for line in lines if line.startswith("python: tests/gpu/node_trainers.py")]
    assert "--gpu GPU-1 " in started
    assert "--nccl /of/torch/libnccl.so.2 " in started
    _, lines = run(unpacked, GRADSYNC_NCCL="/named/libnccl.so.2")
    assert [line for line in lines if "node_trainers.py" in line and "--nccl /named/libnccl.so.2 " in line]
    write_program(unpacked / "tools" / "python3", PYTHON.replace("/of/torch/libnccl.so.2", ""))
    code, lines = run(unpacked)
    assert (code, lines[-1]) == (0, "8 passed, 0 failed, 1 skipped"), lines
    assert [line for line in lines if line.startswith("gpu: nodes skipped: python3 has no libnccl.so.2")]


def test_tests_that_saw_no_device_have_not_passed(unpacked: Path) -> None:
    write_program(unpacked / "build" / "gpu" / "bin" / "gpu_test", "echo no CUDA device: too old")
    code, lines = run(unpacked)
    assert (code, lines[-1]) == (1, "8 passed, 1 failed, 0 skipped"), lines


def test_a_file_that_is_not_as_it_was_packed_is_named(unpacked: Path) -> None:
    (unpacked / "SHA256SUMS").write_text(f"{'0' * 64}  ./COMMIT\n")
    run(unpacked)
    assert "./COMMIT: FAILED" in (unpacked / "out" / "machine.txt").read_text()


@pytest.mark.parametrize("answer", ["echo No devices were found", "exit 9"])
def test_without_a_gpu_nothing_runs(unpacked: Path, answer: str) -> None:
    write_program(unpacked / "tools" / "nvidia-smi", answer)
    assert run(unpacked) == (69, ["gpu: no GPU (nvidia-smi lists none); nothing was run"])
    assert not (unpacked / "out").exists()
