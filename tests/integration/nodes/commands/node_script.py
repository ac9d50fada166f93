"""A training script that knows nothing of nodes: DDP or FSDP2, and the clip of gradsync. Each rank prints its norms,
its coefficients, and a hash of the gradients that it clipped."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradsync.torch as gst

STEPS = 4


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def inputs_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def digest_of(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        held: Any = parameter.grad
        found.update((held.to_local() if hasattr(held, "to_local") else held).numpy().tobytes())
    return found.hexdigest()


def main(kind: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = model_of(0)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    gst.init(model)
    norms, coefficients, gradients = [], [], []
    for step in range(STEPS):
        model.zero_grad()
        model(inputs_of(step, rank)).pow(2).sum().backward()
        gradients.append(digest_of(model))
        norm = gst.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        coefficients.append(gst.last_report().coefficient.hex())
    said = {"rank": rank, "norms": norms, "coefficients": coefficients, "gradients": gradients}
    sys.stdout.write(json.dumps({**said, "node": os.environ["GROUP_RANK"]}) + "\n")
    sys.stdout.flush()
    gst.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
