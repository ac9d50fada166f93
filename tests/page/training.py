"""A run of two ranks in processes of their own, with all that a page can show of one: steps that are clipped, one whose
gradients are not finite, and a rank that is always last."""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from types import TracebackType

from daemon import DEADLINE_S, Daemon, call

import gradsync

PROCESSES = multiprocessing.get_context("forkserver")
SUM = {"dp": gradsync.Partial("sum") >> gradsync.Replicate()}
SIZES = {"embedding": 6000, "attention": 4000, "mlp": 8000, "head": 3000}
OPTIONS = ("--engine-first-bucket-bytes", "8192", "--engine-bucket-bytes", "16384")
NONFINITE_EVERY = 40  # steps
LATE_S = 0.02  # rank 1, in each step


def train(address: str, job: str, rank: int) -> None:
    with gradsync.connect(address) as client:
        attached = client.attach(job=job, rank=rank, world_size=2)
        tensors = [gradsync.Tensor(name, (size,), placements=SUM) for name, size in SIZES.items()]
        grads = attached.declare(tensors, clip=gradsync.Clip(max_norm=100.0, nonfinite="skip"))
        step = 0
        while True:
            for name, size in SIZES.items():
                values = grads.input(name).numpy()
                values[:] = (1.0 + 0.5 * math.sin(step / 5)) / math.sqrt(size) * 20
                if step % NONFINITE_EVERY == 12 and rank == 1 and name == "mlp":
                    values[:3] = math.nan
                grads.ready(name)
                time.sleep(0.002)
            time.sleep(LATE_S * rank)
            try:
                grads.finish(step=step, timeout=DEADLINE_S)
            except gradsync.errors.RankLost:
                signal.pause()  # stays in the job, which waits for the other rank
            step += 1


class Training:
    """The daemon and both ranks, from the first steps on."""

    def __init__(self, job: str, *arguments: str) -> None:
        self.job = job
        self.daemon = Daemon(*OPTIONS, *arguments)

    def __enter__(self) -> Training:
        self.daemon.__enter__()
        self.ranks = [
            PROCESSES.Process(target=train, args=(self.daemon.socket, self.job, rank), daemon=True) for rank in range(2)
        ]
        for rank in self.ranks:
            rank.start()
        deadline = time.monotonic() + DEADLINE_S
        while self.steps() < NONFINITE_EVERY + 10:
            assert time.monotonic() < deadline, "the ranks do not train"
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.join(DEADLINE_S)
        self.daemon.__exit__(kind, error, trace)

    def steps(self) -> int:
        result = call(self.daemon.unix(), "status.get")["result"]
        return sum(job["steps_committed"] for job in result["jobs"])  # type: ignore[index,call-overload]
