"""Ranks that are told neither rank, world size nor job, under each launcher that can be started here.

mpirun is an optional package of scripts/setup.sh. srun needs a cluster: tests/python/connection/test_launch.py has its
variables, and one test here a whole world of them.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon import BINARY, clean_environment
from forms import some_of

pytestmark = pytest.mark.long  # each starts processes that import torch
DEADLINE_S = 110.0
LAUNCHED = str(Path(__file__).with_name("launched.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
# Root is who runs tests in a container; a slot is one core, of which there may be fewer than ranks.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
READABLE = re.compile(r"launched\.py@[^@\s]+-[0-9a-f]{4}")
MEAN_NORM = 1.5 * math.sqrt(4)  # of a gradient of four ones, times 1 and times 2


def told(*command: str, status: int = 0, **environment: str) -> list[dict[str, Any]]:
    """What the ranks of a command printed, under a private daemon, by rank."""
    done = subprocess.run(
        [BINARY, "run", "--", *command],
        env=clean_environment(OMP_NUM_THREADS="1", **environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda one: int(one.get("rank", 0)))


def check_pair(found: list[dict[str, Any]], norm: float | None) -> str:
    """Two ranks of one job, which is named after the script."""
    assert [(one["rank"], one["world_size"]) for one in found] == [(0, 2), (1, 2)]
    (name,) = {one["job"] for one in found}
    assert READABLE.fullmatch(name), name
    for one in found:
        assert one["norm"] == (norm if norm is None else pytest.approx(norm, rel=1e-6))
    return str(name)


def test_torchrun_with_a_process_group() -> None:
    found = told(*TORCHRUN, "--standalone", LAUNCHED, "group", "step")
    check_pair(found, MEAN_NORM)


def test_torchrun_without_a_process_group_and_two_runs_at_one_port() -> None:
    names = {check_pair(told(*TORCHRUN, "--master-port", "29871", LAUNCHED, "raw"), None) for _ in range(2)}
    assert len(names) == 2, "the run id is none and the port the same, and yet these are two runs"


def test_ranks_that_torchrun_restarts_go_on_in_their_job() -> None:
    found = told(*TORCHRUN, "--standalone", "--max-restarts", "1", LAUNCHED, "fails_once")
    assert sorted((one["rank"], one["restart"]) for one in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({one["job"] for one in found}) == 1


@pytest.mark.parametrize("body", some_of(["step", "measure", "without_a_store"], ["step"]))
def test_spawned_ranks_agree_over_their_process_group(body: str, tmp_path: Path) -> None:
    found = told(sys.executable, LAUNCHED, "spawn", f"file://{tmp_path}/store", body)
    check_pair(found, MEAN_NORM if body != "measure" else 2.0)


def test_spawned_ranks_agree_over_tcp(tmp_path: Path) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    check_pair(told(sys.executable, LAUNCHED, "spawn", f"tcp://127.0.0.1:{port}", "step"), MEAN_NORM)


def test_spawned_ranks_without_a_process_group_are_not_taken_for_single_processes() -> None:
    found = told(sys.executable, LAUNCHED, "spawn_without_a_group")
    assert len(found) == 2
    assert all("init_process_group" in one["refused"] for one in found)


def test_a_single_process() -> None:
    names = set()
    for body, norm in (("step", 2.0), ("measure", 2.0)):
        (found,) = told(sys.executable, LAUNCHED, body)
        assert (found["rank"], found["world_size"]) == (0, 1)
        assert found["norm"] == pytest.approx(norm)
        assert READABLE.fullmatch(found["job"])
        names.add(found["job"])
    assert len(names) == 2


def test_the_variables_of_srun_and_mpirun(tmp_path: Path) -> None:
    srun = 'SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID="$rank"'
    mpirun = 'PMIX_NAMESPACE=a@1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK="$rank"'
    for variables in (srun, mpirun):
        ranks = f'for rank in 0 1; do env {variables} "$0" "$1" step & done; wait'
        check_pair(told("/bin/sh", "-c", ranks, sys.executable, LAUNCHED), MEAN_NORM)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)")
@pytest.mark.parametrize(("body", "norm"), some_of([("step", MEAN_NORM), ("raw", None)], [("step", MEAN_NORM)]))
def test_mpirun(body: str, norm: float | None) -> None:
    # In two runs, because a job must not have the name of the one before it.
    names = {check_pair(told(*MPIRUN, "-np", "2", sys.executable, LAUNCHED, body), norm) for _ in range(2)}
    assert len(names) == 2


def test_a_contradiction_is_refused_on_all_ranks(tmp_path: Path) -> None:
    found = told(sys.executable, LAUNCHED, "spawn", f"file://{tmp_path}/store", "contradicts")
    assert len(found) == 2
    for one in found:
        assert "WORLD_SIZE=4" in one["refused"]
        assert "world_size 2" in one["refused"]


def test_a_rank_that_waits_for_rank_0_does_not_wait_for_ever(tmp_path: Path) -> None:
    (found,) = told(sys.executable, LAUNCHED, "spawn", f"file://{tmp_path}/store", "rank_0_stays_away")
    assert "rank 0 has not named the job within 0.5 s" in found["refused"]


@pytest.mark.skipif(
    importlib.util.find_spec("pytorch_lightning") is None,
    reason="pytorch_lightning is not installed; its ranks have a process group, as those of the other tests",
)
def test_lightnings_launcher(tmp_path: Path) -> None:
    script = Path(__file__).with_name("lightning_script.py")
    found = told(sys.executable, str(script), str(tmp_path))
    assert [(one["rank"], one["world_size"]) for one in found] == [(0, 2), (1, 2)]
    (name,) = {one["job"] for one in found}
    assert re.fullmatch(r"lightning_script\.py@[^@\s]+-[0-9a-f]{4}", name)
    assert all(math.isfinite(one["norm"]) and one["norm"] > 0 for one in found)
