"""Where the time of `gradsync observe` goes: training steps of the demo's model in a process, every other one observed.

Prints CPU times, which a busy machine changes least: the least and the median of each part, and of pairs of a plain and
an observed step. `bare` is the loop that bounds whatever measures all gradients (contenders/train.py). No bar belongs
to it; `observe_e2e` is the benchmark. Run it with GRADSYNCD set: build/venv/bin/python tests/bench/observe_parts.py
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gradsync
from contenders import train
from gradsync.torch._observed._watcher import Watcher
from processes import free_port

PAIRS = int(os.environ.get("PAIRS", "100"))
WARM_UP = 3


def timed(owner: Any, name: str, found: dict[str, list[float]]) -> None:
    plain: Callable[..., Any] = getattr(owner, name)
    found[name] = []

    def around(*args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return plain(*args, **kwargs)
        finally:
            found[name].append(time.thread_time() - begin)

    setattr(owner, name, around)


def main() -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    found: dict[str, list[float]] = {}
    plain_clip = nn.utils.clip_grad_norm_
    with gradsync.connect(spawn=True) as client, tempfile.TemporaryDirectory() as folder:
        os.environ["GRADSYNC_ADDRESS"] = f"unix:{client.address}"
        run = train.train_char.Run(train.train_char.parse(["--backend", "measuring"]))
        watcher = Watcher({"folder": folder, "jsonl": f"{folder}/lines.jsonl", "patience_s": 60.0})
        bare, run.backend.__class__ = run.backend.measure, train.train_char.Ddp

        def observed_clip(*args: Any, **kwargs: Any) -> Any:
            return watcher.around("clip", plain_clip, args, kwargs)

        def step(number: int, clip: Callable[..., Any]) -> float:
            nn.utils.clip_grad_norm_ = clip
            begin = time.process_time()
            run.forward_backward(number)
            run.backend.step()
            return time.process_time() - begin

        step(0, observed_clip)
        observer = watcher._observer
        assert observer is not None
        for owner, name in ((watcher, "_before"), (watcher, "_ask"), (observer._measurer, "measure")):
            timed(owner, name, found)
        timed(observer, "_told", found)
        found["bare"], found["plain step"], found["observed step"] = [], [], []
        for number in range(-WARM_UP, PAIRS):
            for kind in ("plain step", "observed step")[:: 1 if number % 2 else -1]:
                found[kind].append(step(2 * number + 7, observed_clip if kind == "observed step" else plain_clip))
            run.forward_backward(number + 7)
            begin = time.thread_time()
            bare()
            found["bare"].append(time.thread_time() - begin)
            run.optimizer.zero_grad()
        watcher.close()
        print(f"{len(watcher._tensors)} tensors, torch {torch.__version__}")
        run.backend.close()
    for name, times in found.items():
        kept = times[WARM_UP:]
        print(f"{name.strip('_'):14} {1e3 * min(kept):8.3f} {1e3 * statistics.median(kept):8.3f} ms")
    pairs = zip(found["plain step"][WARM_UP:], found["observed step"][WARM_UP:], strict=True)
    low, middle, high = statistics.quantiles([one / other for one, other in pairs], n=4)
    print(f"plain / observed step, of pairs: {middle:.4f} (quartiles {low:.4f}, {high:.4f})")


if __name__ == "__main__":
    main()
