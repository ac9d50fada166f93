"""What a tracker costs a training step: one rank on the daemon, its steps with trackers and without in turn.

A block is 100 steps, of which two are logged. Blocks without a tracker, with one that takes everything, with one that
never answers, with a file of lines, and with MLflow on SQLite (where it is installed) follow each other in one process.
The bar is one of the training thread's CPU time, which a busy machine changes least. Shown beside it are the CPU time
of the whole process, the tracker's thread included, and the time of the clock, which has what the two threads of Python
take from each other. So that what a block logs is sent within it, feeds look into their queues twenty times as often as
they do, and the CPU time of the process goes on until nothing waits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import results
from processes import free_port, private_daemon

STEPS = 100
WIDTH, ROWS = 256, 64
WANTED_MS = 0.1
INTERVAL_S = 0.05
SENT_S = 0.4  # what a tracker hangs with is not waited for


class Block(NamedTuple):
    """Milliseconds of a step."""

    training: float  #: CPU of the training thread
    process: float  #: CPU of all threads
    clock: float


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    import torch

    from gradsync.trackers import _feed

    torch.set_num_threads(1)
    _feed.INTERVAL_S = INTERVAL_S
    logging.getLogger("gradsync").setLevel(logging.ERROR)  # that a tracker hangs is what is wanted
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        address = stack.enter_context(private_daemon(binaries / "gradsyncd", folder))
        launch = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(launch, MASTER_PORT=str(free_port()), GRADSYNC_ADDRESS=address)
        blocks = {kind: stack.enter_context(training(log_to)) for kind, log_to in targets(folder, stack).items()}
        samples: dict[str, list[Block]] = {kind: [] for kind in blocks}
        for block in blocks.values():
            block()
        for _ in range(rounds):
            for kind, block in blocks.items():
                samples[kind].append(block())
            print(
                f"{name}: " + ", ".join(f"{kind} {samples[kind][-1].clock:.3f}" for kind in samples) + " ms", flush=True
            )
    shown = {
        f"{kind}, {what}": f"{1e3 * value:+.0f} µs a step"
        for what in ("process", "clock")
        for kind, value in more_than_nothing(samples, what).items()
    }
    config = {
        "steps_in_a_block": STEPS,
        "rounds": rounds,
        "parameters": WIDTH * WIDTH,
        "shown": shown,
        "blocks_ms": {kind: [one._asdict() for one in found] for kind, found in samples.items()},
    }
    cost = more_than_nothing(samples, "training")
    bars = [results.Bar(f"{kind}, CPU", round(value, 5), WANTED_MS, unit="ms a step") for kind, value in cost.items()]
    training_ms = {kind: [one.training for one in found] for kind, found in samples.items()}
    return results.write(name, "ms", training_ms.pop("takes_all"), training_ms, None, config, bars)


def more_than_nothing(samples: dict[str, list[Block]], what: str) -> dict[str, float]:
    """The median difference to the block of the same round without a tracker."""
    plain = [getattr(one, what) for one in samples["no_tracker"]]
    return {
        kind: statistics.median(getattr(one, what) - bare for one, bare in zip(found, plain, strict=True))
        for kind, found in samples.items()
        if kind != "no_tracker"
    }


def targets(folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """What is logged to; None: nothing is."""
    over = threading.Event()
    stack.callback(over.set)

    def hangs(values: dict[str, float], step: int) -> None:
        over.wait()

    found: dict[str, Any] = {"no_tracker": None, "takes_all": lambda values, step: None, "hangs": hangs}
    found["lines"] = str(folder / "run.jsonl")
    if importlib.util.find_spec("mlflow") is not None and importlib.util.find_spec("sqlalchemy") is not None:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/runs.db"
        found["mlflow_sqlite"] = "mlflow"
    return found


@contextlib.contextmanager
def training(log_to: Any) -> Iterator[Callable[[], Block]]:
    """A block of steps of a model of its own, in a job of its own."""
    import torch

    import gradsync
    import gradsync.torch as gst

    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(ROWS, WIDTH)
    job = f"bench-{time.monotonic_ns()}"
    with gst.attach(model, clip=gradsync.Clip(max_norm=1.0), job=job, weights_every=0, log_to=log_to) as gs:

        def block() -> Block:
            process, thread, clock = time.process_time(), time.thread_time(), time.perf_counter()
            for _ in range(STEPS):
                model(inputs).square().mean().backward()
                gs.step(optimizer)
            thread, clock = time.thread_time() - thread, time.perf_counter() - clock
            until = time.monotonic() + SENT_S
            while any(one.feed.waits for one in gs._log._chosen) and time.monotonic() < until:
                time.sleep(INTERVAL_S / 5)
            seconds = thread, time.process_time() - process, clock
            return Block(*(round(1e3 * value / STEPS, 5) for value in seconds))

        yield block
