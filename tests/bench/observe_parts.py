"""Where the time of `gradsync observe` goes in one process: prints the least and the tenth part of 300 calls, in ms.

No bar belongs to it; `observe_e2e` is the benchmark. Run it with GRADSYNCD set: build/venv/bin/python observe_parts.py
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gradsync
from gradsync.torch._observed._watcher import Watcher

CALLS = 300
WIDTH, LAYERS = 256, 4


def model() -> list[nn.Parameter]:
    """As many tensors and elements as clients/python/examples/train_char.py has."""
    layers: list[nn.Module] = [nn.Embedding(96, WIDTH), nn.Embedding(256, WIDTH)]
    for _ in range(LAYERS):
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)]
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)]
    whole = nn.ModuleList([*layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96)])
    parameters = list(whole.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    print(f"{len(parameters)} tensors of {sum(p.numel() for p in parameters)} elements, torch {torch.__version__}")
    return parameters


def timed(owner: Any, name: str, found: dict[str, list[float]]) -> None:
    plain: Callable[..., Any] = getattr(owner, name)
    found[name] = []

    def around(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            found[name].append(time.perf_counter() - begin)

    setattr(owner, name, around)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    parameters, found = model(), dict[str, list[float]]()
    with gradsync.connect(spawn=True) as client, tempfile.TemporaryDirectory() as folder:
        os.environ["GRADSYNC_ADDRESS"] = f"unix:{client.address}"
        watcher = Watcher({"folder": folder, "jsonl": f"{folder}/lines.jsonl", "patience_s": 60.0})

        def step() -> None:
            watcher.around("clip", nn.utils.clip_grad_norm_, (parameters, 1e9), {})
            time.sleep(0.01)  # the backward pass, in which the daemon answers

        step()
        observer = watcher._observer
        assert observer is not None
        for owner, name in ((watcher, "_before"), (watcher, "_ask"), (observer._measurer, "measure")):
            timed(owner, name, found)
        timed(observer, "_told", found)
        for _ in range(CALLS):
            step()
        watcher.close()
    for name, times in found.items():
        times.sort()
        print(f"{name.strip('_'):8} {1e3 * times[0]:7.3f} {1e3 * times[len(times) // 10]:7.3f}")


if __name__ == "__main__":
    main()
