"""`sync` over daemons of several nodes that have several GPUs each: a worker for each of them, and NCCL between all.

As in test_sync_gpus.py GPUs are emulated and NCCL is a fake; the right numbers are those of one daemon over memory of
CPUs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import DEADLINE_S, Daemon
from gpu_jobs import LIBRARY, ON_GPUS, declare, ranks_over, until_done
from gpu_ranks import GPUS, GpuRank, all_do, mappings_in, options, workers_of
from node_jobs import Nodes

import gradsync

Steps = list[list[dict[str, Any]]]

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built"),
    pytest.mark.timeout(3 * DEADLINE_S),
]


@contextlib.contextmanager
def ranks_of_one(world: int, **env: str) -> Iterator[list[GpuRank]]:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(GpuRank(daemon.socket, "cpu", rank, world, **env)) for rank in range(world)]
        all_do(ranks, "declare", device="cpu")
        yield ranks


def of_tensor_parallelism(ranks: list[GpuRank]) -> Steps:
    """Ranks 0 and 1, and 2 and 3, have equal gradients of all but "rows"; then some have not."""
    steps = [all_do(ranks, "step", seed=seed, whole=True) for seed in range(2)]
    steps.append(all_do(ranks, "step", seed=2, whole=True, special={"3": "bias"}))
    steps.append(all_do(ranks, "step", seed=3, whole=True, special={"1": "rows=nan"}))
    steps.append(all_do(ranks, "step", seed=4, whole=True, unused=["scale"]))
    for number, rank in enumerate(ranks):
        rank.tell("step", seed=5, whole=True, unused=["bias"] if number in (0, 1) else [])
    steps.append([rank.answer() for rank in ranks])
    return steps


def test_several_gpus_of_each_node_have_the_bits_of_one_process(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *ON_GPUS) as nodes, ranks_over(nodes, 2, GPUS, TP="2") as ranks:
        declare(ranks)
        found = of_tensor_parallelism(ranks)
        with ranks_of_one(4, TP="2") as one:
            assert found == of_tensor_parallelism(one)
        assert found[0][0]["clipped"]
        assert found[2][0]["divergence"] == [["bias", [1, 3]]]
        assert found[3][0]["nonfinite"] == [["rows", 1, [1]]]
        assert found[4][0]["absent"] == ["scale"]
        for node in range(2):
            assert len(workers_of(nodes.daemons[node].process.pid)) == 2
            with gradsync.connect(nodes.address(node)) as client:
                (job,) = client.status()["jobs"]
            groups = {tuple(group["ranks"]): group for group in job["communicators"]}
            assert sorted(groups) == [(0, 2), (1, 3)]
            assert all(group["transport"] == "nccl" for group in groups.values())
            assert all(group["operations"] == 6 * group["operations_per_step"] > 0 for group in groups.values())


def test_a_node_with_two_gpus_beside_one_with_one(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *ON_GPUS) as nodes, contextlib.ExitStack() as stack:
        places = [(0, GPUS[0]), (0, GPUS[1]), (1, GPUS[1]), (1, GPUS[1])]
        ranks = [
            stack.enter_context(GpuRank(nodes.address(node), "job", rank, 4, gpu=gpu, over=(2, nodes.coordinator)))
            for rank, (node, gpu) in enumerate(places)
        ]
        declare(ranks)
        found = [all_do(ranks, "step", seed=seed, whole=True) for seed in range(3)]
        with ranks_of_one(4) as one:
            assert found == [all_do(one, "step", seed=seed, whole=True) for seed in range(3)]


@contextlib.contextmanager
def ranks_apart(*more: str, **env: str) -> Iterator[tuple[Daemon, list[GpuRank]]]:
    """Four of one daemon, on two GPUs that do not reach each other's memory."""
    with Daemon(*options(*more), "--gpu-peer-access", "off") as daemon, contextlib.ExitStack() as stack:
        yield (
            daemon,
            [
                stack.enter_context(GpuRank(daemon.socket, "job", rank, 4, gpu=GPUS[rank % 2], **env))
                for rank in range(4)
            ],
        )


def test_gpus_of_one_node_that_do_not_reach_each_others_memory() -> None:
    with ranks_apart("--nccl-library", str(LIBRARY)) as (daemon, ranks), ranks_of_one(4) as one:
        declare(ranks)
        for seed in range(3):
            assert all_do(ranks, "step", seed=seed, whole=True) == all_do(one, "step", seed=seed, whole=True)
        with gradsync.connect(daemon.socket) as client:
            (job,) = client.status()["jobs"]
        (group,) = job["communicators"]
        assert (group["transport"], group["ranks"]) == ("nccl", [0, 1])
        found = [mappings_in(worker) for worker in workers_of(daemon.process.pid)]
        assert found == [3, 3], "memory of its own two ranks, and staging memory"


def test_gpus_between_which_nothing_travels_need_no_library() -> None:
    with ranks_apart("--nccl-library", "off", TP="2") as (daemon, ranks), ranks_of_one(4, TP="2") as one:
        declare(ranks)
        assert of_tensor_parallelism(ranks) == of_tensor_parallelism(one)
        with gradsync.connect(daemon.socket) as client:
            (job,) = client.status()["jobs"]
        assert job["communicators"] == []


@pytest.mark.long
def test_a_worker_of_gpus_apart_that_is_killed() -> None:
    with ranks_apart("--nccl-library", str(LIBRARY)) as (daemon, ranks), ranks_of_one(4) as one:
        declare(ranks)
        os.kill(workers_of(daemon.process.pid)[0], signal.SIGKILL)
        assert until_done(ranks, 0) == all_do(one, "step", seed=0, whole=True)


def kill_a_worker(nodes: Nodes, _: list[GpuRank]) -> None:
    os.kill(workers_of(nodes.daemons[1].process.pid)[1], signal.SIGKILL)


def kill_a_node(nodes: Nodes, ranks: list[GpuRank]) -> None:
    nodes.kill(1)
    assert [answer["kind"] for answer in all_do(ranks[:2], "step", seed=1, whole=True)] == ["NodeLost"] * 2
    nodes.start_again(1, healed=True)


@pytest.mark.long
@pytest.mark.parametrize("hurt", [kill_a_worker, kill_a_node])
def test_what_is_lost_on_one_gpu_is_lost_for_all_and_comes_back(
    tmp_path: Path, hurt: Callable[[Nodes, list[GpuRank]], None]
) -> None:
    with ranks_of_one(4) as one:
        right = [all_do(one, "step", seed=seed, whole=True) for seed in range(2)]
    with Nodes(tmp_path, 2, *ON_GPUS) as nodes, ranks_over(nodes, 2, GPUS) as ranks:
        declare(ranks)
        assert all_do(ranks, "step", seed=0, whole=True) == right[0]
        hurt(nodes, ranks)
        assert until_done(ranks, 1) == right[1]
        assert [len(workers_of(daemon.process.pid)) for daemon in nodes.daemons] == [2, 2]
