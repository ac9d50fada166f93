"""Daemons that are ended and started again at one address while ranks train, and the ranks that do.

This file is also the program of a rank: `python restarts.py MODE ADDRESS RANK STEPS FOLDER`. Every step's result is
compared with what a single process makes of the same inputs, bit for bit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from daemon import BINARY, DEADLINE_S, clean_environment

WORLD, MAX_NORM = 2, 2.0
SIZES = (1, 30_000, 3, 100_000)  # integers below 2^24: every sum is exact
CASES = ("arena", "arena_halves", "stats", "stats_halves")


class Lives:
    """One daemon after the other at the same address."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.address = str(folder / "gradsync.sock")
        self._log = open(folder / "daemon.log", "ab")  # noqa: SIM115
        self._options = options
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        self.processes.append(
            subprocess.Popen(
                [BINARY, "serve", "--socket", self.address, "--health", "off", *self._options],
                env=clean_environment(),
                stderr=self._log,
            )
        )

    def end(self, how: signal.Signals) -> None:
        """Ends the daemon and starts the next at once: after a SIGTERM while the one before still drains."""
        before = self.processes[-1]
        before.send_signal(how)
        if how == signal.SIGKILL:
            before.wait(DEADLINE_S)
        self.start()
        if how == signal.SIGTERM:
            # One that is told in its first milliseconds has not begun to listen to signals, nor to anything else.
            assert before.wait(DEADLINE_S) in (0, -signal.SIGTERM), before.returncode

    def __enter__(self) -> Lives:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE_S)
        self._log.close()


def end_at_random(lives: Lives, how: signal.Signals, steps_done, wanted: list[int], seed: int, within_s: float) -> None:
    """Once each of the `wanted` steps is done: a random time up to `within_s` later."""
    chance = random.Random(seed)
    for step in wanted:
        end = time.monotonic() + DEADLINE_S
        while steps_done() <= step:
            assert time.monotonic() < end, f"step {step} did not come: {steps_done()} are done"
            time.sleep(0.002)
        time.sleep(chance.uniform(0, within_s))
        lives.end(how)


def contribution(index: int, step: int, rank: int) -> np.ndarray:
    size = SIZES[index]
    return ((np.arange(size) * (index + 2) + 17 * step) % 251 + 100 * rank).astype(np.float32)


def expected(step: int) -> tuple[list[np.ndarray], float, float]:
    """Mean over ranks, its norm, and the coefficient."""
    means = [sum(contribution(i, step, rank) for rank in range(WORLD)) / np.float32(WORLD) for i in range(len(SIZES))]
    norm = float(np.sqrt(sum(float((mean.astype(np.float64) ** 2).sum()) for mean in means)))
    return means, norm, min(1.0, MAX_NORM / norm)


def train(case: str, address: str, rank: int, steps: int, folder: Path) -> None:
    import gradsync
    from gradsync import Partial, Replicate, Row, Tensor
    from gradsync.errors import ConnectionLost

    names = [f"t{index}" for index in range(len(SIZES))]
    stats = case.startswith("stats")
    dp = Replicate() if stats else Partial("mean") >> Replicate()
    tensors = [Tensor(name, (size,), placements={"dp": dp}) for name, size in zip(names, SIZES, strict=True)]
    clip = gradsync.Clip(max_norm=MAX_NORM)
    lost = 0
    progress = os.open(folder / f"progress-{rank}", os.O_WRONLY | os.O_CREAT)
    with gradsync.connect(address, timeout=DEADLINE_S) as client:
        job = client.attach(job="restarts", rank=rank, world_size=WORLD)
        grads = job.declare(tensors, data_path="stats" if stats else "arena", clip=clip)
        views = None if stats else [grads.input(name).numpy() for name in names]
        for step in range(steps):
            means, norm, coefficient = expected(step)
            while True:
                for index, name in enumerate(names):
                    if views is None:
                        grads.write(name, Row.of(means[index].astype(float)[:20]))
                    else:
                        views[index][:] = contribution(index, step, rank)
                        grads.ready(name)
                try:
                    if case.endswith("halves"):
                        measured = grads.compute_norm(step=step)
                        report = grads.apply_clip()
                        assert measured.norm == report.norm
                    else:
                        report = grads.finish(step=step)
                    break
                except ConnectionLost as error:
                    if not error.step_lost:
                        raise
                    lost += 1
            assert report.step == step
            if views is None:
                parts = [mean[:20].astype(np.float64) for mean in means]
                norm = float(np.sqrt(sum(float((part**2).sum()) for part in parts)))
                coefficient = min(1.0, MAX_NORM / norm) if norm > 0 else 1.0
                assert abs(report.coefficient / coefficient - 1) < 1e-6, (step, report.coefficient, coefficient)
            else:
                for view, mean in zip(views, means, strict=True):
                    np.testing.assert_array_equal(view, mean * np.float32(report.coefficient))
            assert abs(report.norm / norm - 1) < 1e-6, (step, report.norm, norm)
            assert not report.divergence
            os.pwrite(progress, f"{step + 1}\n".encode(), 0)
    (folder / f"lost-{rank}").write_text(str(lost))


def start_rank(case: str, address: str, rank: int, steps: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, case, address, str(rank), str(steps), str(folder)]
    return subprocess.Popen(command, env=clean_environment(), stdin=subprocess.DEVNULL)


def done_steps(folder: Path, rank: int = 0) -> int:
    try:
        return int((folder / f"progress-{rank}").read_text() or 0)
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
