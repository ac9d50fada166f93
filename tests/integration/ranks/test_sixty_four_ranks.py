"""64 ranks of one node as processes: replicas, shards and tensor parallelism in one job, norm and clip included."""

from __future__ import annotations

import math
import multiprocessing

import numpy as np
import pytest
from daemon import DEADLINE_S, Daemon

import gradsync
from gradsync import Partial, Replicate, Shard, Tensor

AXES = {"dp_replicate": 4, "dp_shard": 8, "tp": 2}
WORLD, DATA, STEPS, MAX_NORM = 64, 32, 3, 2.0
ROWS = 50  # not a multiple of eight: seven rows each, the last rank has one
WHOLE = np.arange(37 * 5, dtype=np.float32).reshape(37, 5)
SPLIT = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
PROCESSES = multiprocessing.get_context("forkserver")


def whole_of(rank: int, step: int) -> np.ndarray:
    return WHOLE + np.float32(rank * (step + 1))


def split_of(rank: int, step: int) -> np.ndarray:
    return SPLIT[:, 2 * (rank % 2) : 2 * (rank % 2) + 2] - np.float32(rank * (step + 1))


def member(address, rank, results):
    mean = Partial("mean") >> Replicate()
    with gradsync.connect(address, timeout=DEADLINE_S) as client:
        job = client.attach(job="sixty-four", rank=rank, world_size=WORLD, meshes={"mesh": AXES})
        grads = job.declare(
            [
                Tensor(
                    "whole",
                    WHOLE.shape,
                    placements={"dp_replicate": mean, "dp_shard": mean, "tp": Partial("sum") >> Replicate()},
                ),
                Tensor(
                    "split",
                    SPLIT.shape,
                    local_shape=(ROWS, 2),
                    placements={"dp_replicate": mean, "dp_shard": Partial("mean") >> Shard(0), "tp": Shard(1)},
                ),
            ],
            clip=gradsync.Clip(max_norm=MAX_NORM),
            timeout=DEADLINE_S,
        )
        steps = []
        for step in range(STEPS):
            for name, given in (("whole", whole_of), ("split", split_of)):
                grads.input(name).numpy()[:] = given(rank, step)
                grads.ready(name)
            report = grads.finish(timeout=DEADLINE_S)
            held = [grads.output(name).numpy().copy() for name in ("whole", "split")]
            steps.append((report.norm, report.coefficient, len(report.divergence), *held))
        results.put((rank, steps))


@pytest.mark.long
def test_sixty_four_ranks():
    PROCESSES.set_forkserver_preload(["gradsync", "numpy"])
    results = PROCESSES.Queue()
    with Daemon() as daemon:
        ranks = [PROCESSES.Process(target=member, args=(daemon.socket, rank, results)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        found = dict(results.get(timeout=DEADLINE_S) for _ in ranks)
        for process in ranks:
            process.join(DEADLINE_S)
            assert process.exitcode == 0
    assert sorted(found) == list(range(WORLD))

    for step in range(STEPS):
        # Integers and divisors of a power of two: every sum is exact in float32.
        whole = sum(whole_of(rank, step).astype(np.float64) for rank in range(WORLD)) / DATA
        split = [sum(split_of(r, step).astype(np.float64) for r in range(tp, WORLD, 2)) / DATA for tp in (0, 1)]
        norm = math.sqrt((whole**2).sum() + sum((half**2).sum() for half in split))
        for rank, steps in found.items():
            our_norm, coefficient, divergence, our_whole, our_split = steps[step]
            assert abs(our_norm - np.float32(norm)) <= np.spacing(np.float32(norm))
            assert (our_norm, coefficient, divergence) == (*found[0][step][:2], 0)
            assert math.isclose(coefficient, MAX_NORM / norm, rel_tol=1e-6)
            first = 7 * (rank // 2 % 8)
            shard = split[rank % 2][first : first + 7]
            assert our_split.shape == (7 if first < 49 else 1, 2)
            for ours, exact in ((our_whole, whole), (our_split, shard)):
                assert np.array_equal(ours, exact.astype(np.float32) * np.float32(coefficient)), (step, rank)
