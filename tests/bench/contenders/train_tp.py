"""Blocks of training steps of the demo's model with tensor parallelism in its feed-forward layers, over two data ranks
and two tp ranks: `gradsync`; `ddp`, which is torch's own way to put data parallelism around tensor parallelism; or
`meeting`, the bound of all that synchronise and leave the parameters as tensor parallelism made them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn, optim
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

sys.path.append(str(Path(__file__).resolve().parents[3] / "clients" / "python" / "examples"))

import train_char
from char_model import CharModel, read_text

TP = 2


class Sidecar(train_char.Sidecar):
    def __init__(self, model: nn.Module, mesh: DeviceMesh, options: Any) -> None:
        import gradsync
        import gradsync.torch

        self.module = model
        self._optimizer = optim.AdamW(model.parameters(), lr=options.lr)
        clip = gradsync.Clip(max_norm=options.max_norm)
        self._gs = gradsync.torch.attach(model, mesh=mesh, accumulate=options.accumulate, clip=clip, formula="torch")

    @property
    def early(self) -> int:
        return self._gs.stats().launched_early


class Ddp(train_char.Ddp):
    """DistributedDataParallel sees local tensors; the norm of what tp splits is summed over tp, once per step."""

    early = 0

    def __init__(self, model: nn.Module, mesh: DeviceMesh, options: Any) -> None:
        split = {name for name, p in model.named_parameters() if _is_split(p)}
        _pre_dp_module_transform(model)
        self.module = nn.parallel.DistributedDataParallel(
            model, process_group=mesh.get_group("dp"), gradient_as_bucket_view=True
        )
        self._optimizer = optim.AdamW(model.parameters(), lr=options.lr)
        self._max_norm = options.max_norm
        self._tp = mesh.get_group("tp")
        self._split = [p for name, p in model.named_parameters() if name in split]
        self._whole = [p for name, p in model.named_parameters() if name not in split]

    def reduce_and_clip(self) -> float:
        split, whole = ([p.grad for p in some] for some in (self._split, self._whole))
        squares = torch.stack(torch._foreach_norm(split)).square().sum()
        distributed.all_reduce(squares, group=self._tp)
        norm = (squares + torch.stack(torch._foreach_norm(whole)).square().sum()).sqrt()
        nn.utils.clip_grads_with_norm_([*self._split, *self._whole], self._max_norm, norm)
        return float(norm)


class Meeting(train_char.Ddp):
    """Ranks that wait for each other once in a step; the parameters stay the DTensors that tp made, as with ours."""

    early = 0

    def __init__(self, model: nn.Module, mesh: DeviceMesh, options: Any) -> None:
        self.module = model
        self._optimizer = optim.AdamW(model.parameters(), lr=options.lr)
        self._max_norm = options.max_norm

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def reduce_and_clip(self) -> float:
        distributed.barrier()
        parameters = list(self.module.parameters())
        gradients = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters]
        norm = torch.stack(torch._foreach_norm(gradients)).square().sum().sqrt()
        torch._foreach_mul_(gradients, torch.clamp(self._max_norm / (norm + 1e-6), max=1.0))
        return float(norm)


def _is_split(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor) and any(placement.is_shard() for placement in parameter.placements)


BACKENDS = {"gradsync": Sidecar, "ddp": Ddp, "meeting": Meeting}
train_char.BACKENDS |= {"meeting": Meeting}  # the options know it


class Run(train_char.Run):
    def __init__(self, options: Any) -> None:
        distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (distributed.get_world_size() // TP, TP), mesh_dim_names=("dp", "tp"))
        self.options = options
        self.rank = mesh.get_local_rank("dp")  # which part of the data it sees
        self.text = read_text()
        torch.manual_seed(options.seed)
        self.model = CharModel(options.context, options.width, options.layers, options.heads)
        for block in self.model.blocks:
            parallelize_module(block, mesh["tp"], {"feed.0": ColwiseParallel(), "feed.2": RowwiseParallel()})
        self.backend = BACKENDS[options.backend](self.model, mesh, options)


class Contender:
    def __init__(self, rank: int, world_size: int, backend: str, accumulate: int, block: int) -> None:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
        self._run = Run(train_char.parse(["--backend", backend, "--accumulate", str(accumulate)]))
        self._block = block
        self._next_step = 0
        self._norm = self._loss = self._cpu_s = 0.0

    def fill(self) -> None:
        """A training needs nothing between its steps."""

    def step(self) -> None:
        begin = time.process_time()
        for step in range(self._next_step, self._next_step + self._block):
            self._loss = self._run.forward_backward(step)
            self._norm = self._run.backend.step()
        self._next_step += self._block
        self._cpu_s = (time.process_time() - begin) / self._block

    def result(self) -> dict[str, Any]:
        found = {"norm": self._norm, "loss": self._loss, "step": self._next_step, "cpu_s": self._cpu_s}
        return found | {"early": self._run.backend.early}

    def close(self) -> None:
        self._run.backend.close()
        with contextlib.suppress(ValueError, AssertionError):  # DDP's has done it
            distributed.destroy_process_group()
