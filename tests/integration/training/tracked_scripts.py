"""One rank whose reports go to a file of lines that has the rank in its name: `tracked_scripts.py HOW FOLDER`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

import gradsync
import gradsync.torch as gst

STEPS = 12
RANK = int(os.environ["RANK"])


def model_of_this_rank() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(16, 1)


def backward(model: torch.nn.Module, step: int, factor: float = 1.0) -> None:
    torch.manual_seed(1000 * RANK + step)
    (model(torch.randn(4, 16)).square().mean() * (1 + step) * factor).backward()


def attached(path: Path) -> None:
    model = model_of_this_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with gst.attach(model, clip=gradsync.Clip(max_norm=2.0), layer=lambda name: name) as gs:
        gs.log_to(path, every=1, groups=True, layers=True)
        for step in range(STEPS):
            backward(model, step, torch.nan if step == 5 and RANK == 1 else 1.0)
            gs.finish()
            optimizer.zero_grad()


def reduced(path: Path, mode: str) -> None:
    dist.init_process_group("gloo")
    inner = model_of_this_rank()
    model = torch.nn.parallel.DistributedDataParallel(inner)
    clip = gradsync.Clip.observe(gradsync.Percentile(warmup=2)) if mode == "observe" else None
    session = gst.init(model, mode=mode, clip=clip)
    session.log_to(path, every=2, first_step=100)
    for step in range(STEPS):
        backward(model, step)
        gst.clip_grad_norm_(model.parameters(), 2.0)
        model.zero_grad()
    gst.close()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    how, path = sys.argv[1], Path(sys.argv[2]) / f"run.{RANK}.jsonl"
    attached(path) if how == "attach" else reduced(path, how)
    assert not [one for one in threading.enumerate() if one.name == "gradsync-tracker"]


if __name__ == "__main__":
    main()
