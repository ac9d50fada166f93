"""The program that has trainers of several nodes share one GPU, on an emulated GPU with a fake NCCL: what a real GPU is
asked about communicators."""

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
PROGRAM = Path(__file__).parents[2] / "gpu" / "node_trainers.py"
LIBRARY = DRIVER.with_name("libnccl_fake.so")
SMALL = ("--steps", "2", "--large", "70001", "--map-ms", "20000", "--back", "1500000")
PATIENT = ("--told", "30", "--patience", "8", "--seconds", "150")
# What the fake ends stays mapped, so that two of these may not come back.
A_COMMUNICATOR = 16 * (32 << 10)  # bytes of the fake's, for slots of 16 ranks

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built"),
    pytest.mark.timeout(4 * DEADLINE_S),
]


def ran(folder: Path, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the results by part."""
    file = folder / "nodes.json"
    emulated = ("--gpu", GPUS[0], "--kernels", str(KERNELS), "--driver", str(DRIVER))
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *emulated, *SMALL, *PATIENT, "--json", str(file), *more],
        env=clean_environment(GRADSYNCD=BINARY),
        check=False,
        timeout=3 * DEADLINE_S,
    )
    first, *results = json.loads(file.read_text())
    return ended.returncode, {"": first} | {each["part"]: each for each in results}


def test_nodes_that_share_a_gpu(tmp_path: Path) -> None:
    code, found = ran(tmp_path, "--nccl", str(LIBRARY), "--shapes", "2x1,2x2")
    assert code == 0, found
    first = found.pop("")
    assert first["nccl"] == 22809
    assert ["NCCL_HOSTID=gradsync-node-1" in settings for settings in first["settings"]] == [False, True]
    assert list(found) == ["sums 2x1", "sums 2x2", "crossing", "abort", "mapping", "killed", "end"]
    for shape in ("2x1", "2x2"):
        sums = found[f"sums {shape}"]
        assert sums["memory"]["members"] == 2
        assert sums["memory"]["bytes_per_member"] >= A_COMMUNICATOR
        for dtype in ("float32", "bfloat16"):
            assert len(set(sums[dtype]["norms"])) == 2
            assert sums[dtype]["off"] > 0, "some sum was rounded"
    assert found["crossing"]["crossed"] == 5
    assert found["abort"]["heard"][0]["kind"] == "StepTimeout"
    assert found["abort"]["abort"] == "returned"
    assert found["abort"]["workers"] == ["kept", "kept"]
    assert found["abort"]["others"]["2x2"]["epoch"] == "kept"
    assert "mapped_s" in found["mapping"]
    assert found["killed"]["workers"] == ["kept", "replaced"]
    assert found["end"]["in_use_bytes"] > found["end"]["ranks_ended_bytes"]
    assert found["end"]["daemons_ended_bytes"] == 0


def test_a_worker_that_cannot_abort_is_replaced(tmp_path: Path) -> None:
    hangs = ("--env", "GRADSYNC_FAKE_NCCL=abort_hangs rank=0", "--abort-ms", "1000")
    code, found = ran(tmp_path, "--nccl", str(LIBRARY), "--shapes", "2x1", "--parts", "abort", *hangs)
    assert code == 0, found
    assert found["abort"]["abort"] == "did not return, so the worker was replaced"


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, found = ran(tmp_path, "--nccl", "/nowhere.so")
    assert code == 1
    assert list(found) == [""], "nothing was tried"
    assert "/nowhere.so" in found[""]["nccl"]


def test_a_part_that_fails_says_why(tmp_path: Path) -> None:
    code, found = ran(
        tmp_path, "--nccl", str(LIBRARY), "--shapes", "2x1", "--parts", "sums", "--kernels", "/nowhere.so"
    )
    assert code == 1
    assert "there is no /nowhere.so" in found["sums 2x1"]["failed"]
    assert found["sums 2x1"]["logs"]["node1"]
