"""The archive of scripts/gpu/bundle.sh, unpacked into an empty folder: it is small, and each program in it starts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build" / "gpu" / "bundle.tar.gz"
MOST_BYTES = 64 << 20
EXPERIMENTS = ("ipc_memory", "memop_flags", "nccl_one_gpu", "two_processes", "empty_step")
GIVEN = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|libcuda|ld-linux-[a-z0-9-]+)\.so\.\d+")  # what the machine has


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder


def ran(unpacked: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command there, which finds nothing of this checkout."""
    return subprocess.run(
        [str(unpacked / command[0]), *command[1:]],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(unpacked / "build/gpu/lib"), **environment},
        cwd=unpacked,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def elf_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def test_it_can_be_carried() -> None:
    assert ARCHIVE.stat().st_size <= MOST_BYTES


def test_a_larger_one_is_refused_with_its_size(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    ended = subprocess.run(
        [str(ROOT / "scripts" / "gpu" / "bundle.sh"), str(file)],
        env=os.environ | {"GPU_BUNDLE_BYTES": "1000", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1
    assert re.search(r"the archive has [0-9]{7,} bytes, and at most 1000 can be carried", ended.stderr), ended.stderr
    assert not list(tmp_path.iterdir())


def test_every_file_is_as_it_was_packed(unpacked: Path) -> None:
    lines = (unpacked / "SHA256SUMS").read_text().splitlines()
    sums = {unpacked / name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path for path in unpacked.rglob("*") if path.is_file()} - {unpacked / "SHA256SUMS"}
    assert set(sums) == files
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == digest for path, digest in sums.items())


def test_every_library_is_in_it_or_the_machines(unpacked: Path) -> None:
    files = elf_files(unpacked)
    inside = {path.name for path in files}
    assert {"gpu_test", "gpu_bench", "gradsyncd", "lane_conformance_test", "libgradsync_kernels.so"} <= inside
    for path in files:
        text = subprocess.run(["readelf", "--dynamic", path], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
        assert not [name for name in needed if name not in inside and not GIVEN.fullmatch(name)], path.name
        found = ran(unpacked, "/usr/bin/ldd", str(path)).stdout
        assert not re.search(r"^\s*(?!libcuda\.so)\S+ => not found", found, re.MULTILINE), found


def test_nothing_in_it_is_for_debuggers(unpacked: Path) -> None:
    for path in elf_files(unpacked):
        text = subprocess.run(["readelf", "--sections", path], capture_output=True, text=True, check=True).stdout
        assert ".debug_info" not in text, path.name
        assert ".symtab" not in text, path.name


@pytest.mark.parametrize("name", ["gpu_test", "lane_conformance_test"])
def test_a_test_program_lists_its_tests(unpacked: Path, name: str) -> None:
    listed = ran(unpacked, f"build/gpu/bin/{name}", "--gtest_list_tests")
    assert listed.returncode == 0, listed.stderr
    assert "Conformance" in listed.stdout


def test_the_filters_of_run_sh_choose_tests(unpacked: Path) -> None:
    script = (unpacked / "run.sh").read_text()
    (lanes,) = re.findall(r"--gtest_filter='(.*?)'", script)
    for part in lanes.split(":"):
        chosen = ran(unpacked, "build/gpu/bin/lane_conformance_test", "--gtest_list_tests", f"--gtest_filter={part}")
        assert chosen.stdout.count("\n  ") > 0, part
    watched = "".join(re.findall(r"watched_tests\+?='(.*?)'", (unpacked / "scripts/gpu/programs.sh").read_text()))
    for part in watched.split(":"):
        chosen = ran(unpacked, "build/gpu/bin/gpu_test", "--gtest_list_tests", f"--gtest_filter={part}")
        assert chosen.stdout.count("\n  ") > 0, part


def test_the_benchmark_starts(unpacked: Path) -> None:
    ended = ran(unpacked, "build/gpu/bin/gpu_bench", "--help")
    assert ended.returncode == 1
    assert "unknown option --help" in ended.stderr


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_starts(unpacked: Path, name: str) -> None:
    # How each answers an argument that it does not know.
    assert ran(unpacked, f"build/gpu/bin/experiment_{name}", "--starts").returncode == 64


def test_the_daemon_starts_and_names_the_commit_of_the_archive(unpacked: Path) -> None:
    version = ran(unpacked, "build/gpu/bin/gradsyncd", "--version")
    assert version.returncode == 0, version.stderr
    (commit,) = re.findall("[0-9a-f]{12}", (unpacked / "COMMIT").read_text())
    assert f"(commit {commit}" in version.stdout


@pytest.mark.parametrize("library", ["lib/libgradsync_kernels.so", "bin/libgpu_bench_library.so"])
def test_a_library_loads(unpacked: Path, library: str) -> None:
    path = unpacked / "build" / "gpu" / library
    ended = ran(unpacked, sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(path)!r})")
    assert ended.returncode == 0, ended.stderr


def test_the_client_needs_nothing_of_this_checkout(unpacked: Path) -> None:
    places = f"{unpacked}/clients/python/src:{unpacked}/python"
    script = "import gradsync.torch, websockets.client as w; print(gradsync.__file__, w.__file__)"
    ended = ran(unpacked, sys.executable, "-c", script, PYTHONPATH=places)
    assert ended.returncode == 0, ended.stderr
    assert all(path.startswith(str(unpacked)) for path in ended.stdout.split())
    for program in (
        "trainers.py",
        "node_trainers.py",
        "bench_clip.py",
        "bench_torch.py",
        "experiments/torch_memory.py",
    ):
        ended = ran(unpacked, sys.executable, f"tests/gpu/{program}", "--help", PYTHONPATH=places)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_run_sh_says_that_there_is_no_gpu(unpacked: Path) -> None:
    ended = ran(unpacked, "run.sh")
    assert ended.returncode == 69
    assert "no GPU" in ended.stderr


def test_run_sh_says_how_long_it_takes(unpacked: Path) -> None:
    ended = ran(unpacked, "run.sh", "--limits")
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1].startswith("total ")
