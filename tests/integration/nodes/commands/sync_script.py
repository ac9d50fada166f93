"""A training script over two nodes whose gradients gradsync reduces: `sync_script.py KIND`, "plain" or "hsdp".

In "plain" rank 3 does not use the last layer from step 2 on; "hsdp" cuts the model within a node. Each rank prints its
norms, and a hash of the gradients of the last step.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradsync
import gradsync.torch as gst

STEPS = 4
UNUSED_FROM = 2


def model_of() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def inputs_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: torch.nn.Module, step: int, rank: int, kind: str, dtype: torch.dtype = torch.float32) -> Any:
    inputs = inputs_of(step, rank).to(dtype)
    layers = list(model.children())
    if kind == "plain" and step >= UNUSED_FROM and rank == 3:
        return layers[0](inputs).pow(2).sum()
    return model(inputs).pow(2).sum()


def main(kind: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = model_of()
    mesh = None
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        fully_shard(model, mesh=mesh["dp_shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gs = gst.attach(model, mesh=mesh, clip=gradsync.Clip(max_norm=0.5))
    norms = []
    for step in range(STEPS):
        loss_of(model, step, rank, kind).backward()
        norms.append(gs.finish().norm)
        held: Any = [p.grad for p in model.parameters()]
        digest = hashlib.sha256()
        for gradient in held:
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            digest.update(local.numpy().tobytes())
        optimizer.zero_grad()
    gs.close()
    said = {"rank": rank, "node": os.environ["GROUP_RANK"], "norms": norms, "gradients": digest.hexdigest()}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
