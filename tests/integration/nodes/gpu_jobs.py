"""Jobs over daemons whose ranks have their gradients on emulated GPUs, which a fake NCCL adds up."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from daemon import BINARY, DEADLINE_S
from gpu_ranks import GPUS, GpuRank, all_do, options
from node_jobs import Nodes

LIBRARY = Path(BINARY).parents[1] / "lib" / "libnccl_fake.so"
UNDECLARED = ("StepFailed", "UnknownBuffer", "StaleEpoch")  # by which a rank hears that it has to declare again
LOST = ("NodeLost", "RankLost", "StaleAttempt", "StepTimeout", "ConnectionLost")  # of a step alone
ON_GPUS = options("--nccl-library", str(LIBRARY))


@contextlib.contextmanager
def ranks_over(nodes: Nodes, per_node: int, gpus: list[str] = GPUS[:1], **env: str) -> Iterator[list[GpuRank]]:
    """Ranks of each node lie on its GPUs in turn."""
    world = per_node * len(nodes.daemons)
    over = (per_node, nodes.coordinator)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(GpuRank(nodes.address(rank // per_node), "job", rank, world, gpu, over, **env))
            for rank, gpu in zip(range(world), itertools.cycle(gpus), strict=False)
        ]


def declare(ranks: list[GpuRank]) -> None:
    answers = all_do(ranks, "declare", device="cuda")
    assert all("digest" in answer for answer in answers), answers


def until_done(ranks: list[GpuRank], seed: int) -> list[dict[str, Any]]:
    """As trainers do, each for itself, that compute the step again when it was lost, and declare again where they are
    told to."""
    end = time.monotonic() + DEADLINE_S

    def until_it_is(rank: GpuRank) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        while "norm" not in answer:
            assert time.monotonic() < end, answer
            assert not answer or answer["kind"] in (*UNDECLARED, *LOST), answer
            undeclared = answer.get("kind") in UNDECLARED
            if not undeclared or "digest" in rank.order("declare", device="cuda"):
                answer = rank.order("step", seed=seed, whole=True)
        return answer

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(until_it_is, ranks))
