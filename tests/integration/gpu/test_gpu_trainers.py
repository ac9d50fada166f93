"""The program that compares trainers on one GPU with those on CPUs, on an emulated GPU: what a real one is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY, DEADLINE_S, clean_environment
from gpu_ranks import DRIVER, GPUS, KERNELS

pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[2] / "gpu" / "trainers.py"
SMALL = ("--worlds", "2", "--steps", "2", "--large", "70001", "--held", "3000000", "--told", "20")


def compared(folder: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    file = folder / "trainers.json"
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), "--gpu", GPUS[0], "--driver", str(DRIVER), *SMALL, "--json", str(file), *more],
        env=clean_environment(GRADSYNCD=BINARY),
        check=False,
        timeout=2 * DEADLINE_S,
    )
    results: list[dict[str, Any]] = json.loads(file.read_text())
    return ended.returncode, results


@pytest.mark.training
def test_ranks_on_a_gpu_have_the_bits_of_cpus(tmp_path: Path) -> None:
    code, (result, killed) = compared(tmp_path, "--kernels", str(KERNELS))
    assert code == 0, killed
    assert "failed" not in result
    same = result["same_bits"]
    assert list(same) == ["raw API", "module", "memory of torch"]
    assert all(len(set(norms)) == 2 for norms in same.values()), "two steps of each"
    cost = killed["owner_killed"]
    assert cost["error"] == "RankLost"
    assert cost["arena_bytes"] == 12_000_000 <= cost["back_bytes"]


@pytest.mark.training
def test_a_daemon_that_cannot_use_the_gpu_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    code, (result, killed) = compared(tmp_path, "--kernels", "/nowhere.so")
    assert code == 1
    assert result["same_bits"] == {}
    failed = result["failed"]
    assert "there is no /nowhere.so" in failed["raw API"]["gpu"]
    assert failed["module"]["gpu"] == "not reached"
    assert "there is no /nowhere.so" in killed["owner_killed"]["failed"]
