"""`sync` over daemons of several nodes whose gradients lie on GPUs: a worker on each node adds up those of its ranks,
and NCCL those of the nodes.

GPUs are emulated, and NCCL is a fake library with real sums. Daemons, workers, client and every mapping are real."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S, Daemon
from gpu_jobs import LIBRARY, ON_GPUS, declare, ranks_over, until_done
from gpu_ranks import GpuRank, all_do, options, workers_of
from node_jobs import Nodes

import gradsync

pytest.importorskip("torch")

WARM_UP = 3  # operations of a new communicator, before its first step

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")


def with_faults(script: str) -> tuple[str, ...]:
    return ("env", f"GRADSYNC_FAKE_NCCL={script}")


def steps_of(ranks: list[GpuRank], count: int = 3) -> list[list[dict[str, Any]]]:
    return [all_do(ranks, "step", seed=seed, whole=True) for seed in range(count)]


def right_steps(world: int) -> list[list[dict[str, Any]]]:
    """Those of memory of CPUs, in one process of one daemon."""
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(GpuRank(daemon.socket, "cpu", rank, world)) for rank in range(world)]
        all_do(ranks, "declare", device="cpu")
        return steps_of(ranks)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_bits_are_those_of_one_process(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *ON_GPUS) as nodes, ranks_over(nodes, 2) as ranks:
        declare(ranks)
        found = steps_of(ranks)
        assert found == right_steps(4)
        assert all(step[0]["clipped"] for step in found)
        for node in range(2):
            (worker,) = workers_of(nodes.daemons[node].process.pid)
            assert "libnccl_fake" in Path(f"/proc/{worker}/maps").read_text()
            assert "libnccl_fake" not in Path(f"/proc/{nodes.daemons[node].process.pid}/maps").read_text()
            with gradsync.connect(nodes.address(node)) as client:
                (job,) = client.status()["jobs"]
            (group,) = job["communicators"]
            assert (group["transport"], group["ranks"]) == ("nccl", [0, 2])
            assert group["operations"] == 3 * group["operations_per_step"] > 0


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_node_that_is_killed_while_a_collective_is_under_way_and_comes_back(tmp_path: Path) -> None:
    with (
        Nodes(tmp_path, 2, *ON_GPUS, before=with_faults(f"stops rank=1 operation={WARM_UP}")) as nodes,
        ranks_over(nodes, 1) as ranks,
    ):
        declare(ranks)
        for rank in ranks:
            rank.tell("step", seed=0, whole=True)
        time.sleep(0.5)  # their collective is under way, and stands still
        nodes.kill(1)
        lost = ranks[0].answer()
        assert lost["kind"] == "NodeLost", lost
        assert "node1" in lost["error"]
        nodes.start_again(1, healed=True)
        ranks[1].answer()
        right = right_steps(2)
        assert until_done(ranks, 0) == right[0]
        assert until_done(ranks, 1) == right[1]


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_worker_that_is_killed_is_replaced_and_communicators_are_built_anew(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *ON_GPUS) as nodes, ranks_over(nodes, 1) as ranks:
        declare(ranks)
        right = right_steps(2)
        assert all_do(ranks, "step", seed=0, whole=True) == right[0]
        (worker,) = workers_of(nodes.daemons[1].process.pid)
        os.kill(worker, signal.SIGKILL)
        assert until_done(ranks, 1) == right[1]
        (other,) = workers_of(nodes.daemons[1].process.pid)
        assert other != worker


@pytest.mark.timeout(3 * DEADLINE_S)
def test_nccl_that_is_switched_off_is_named(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *options("--nccl-library", "off")) as nodes, ranks_over(nodes, 1) as ranks:
        for answer in all_do(ranks, "declare", device="cuda"):
            assert "NCCL is switched off here ([nccl] library=off)" in answer["error"], answer


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_gpus_of_one_node_and_memory_of_cpus_of_another_are_refused(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *ON_GPUS) as nodes, ranks_over(nodes, 1) as ranks:
        ranks[0].tell("declare", device="cuda")
        ranks[1].tell("declare", device="cpu")
        for answer in (ranks[0].answer(), ranks[1].answer()):
            assert answer["kind"] == "PlanMismatch", answer
            assert "have the gradients of all nodes on GPUs, or of none" in answer["error"]
