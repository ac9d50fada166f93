"""Training scripts for test_observe.py, which know nothing of gradsync unless they say so: `observe_scripts.py CASE`.

`observe_scripts.py ranks N CASE` starts ranks without torchrun, as audit_scripts.py does.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit_scripts import blocks, case, main, rank

STEPS = 6


def train(model: Any, clip: Callable[[int], Any], batches: int = 1, steps: int = STEPS) -> None:
    """Trains by AdamW; clips after `batches` backward passes, and writes what may have changed to $WRITE_TO."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank())
    norms = []
    for step in range(steps):
        for _ in range(batches):
            (model(torch.randn(3, 7, generator=generator)).square().sum() / batches).backward()
        norms.append(clip(step))
        optimizer.step()
        optimizer.zero_grad()
    write_digest([*model.parameters(), *(norm for norm in norms if norm is not None), torch.rand(3)])


def write_digest(tensors: list[Any]) -> None:
    import torch

    if "WRITE_TO" not in os.environ:
        return
    found = hashlib.sha256()
    for tensor in (*tensors, torch.get_rng_state()):
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    Path(os.environ["WRITE_TO"], f"rank-{rank()}").write_text(found.hexdigest())


def ddp() -> Any:
    from torch import nn

    return nn.parallel.DistributedDataParallel(blocks())


@case
def plain() -> None:
    from torch.nn.utils import clip_grad_norm_

    model = ddp()
    train(model, lambda _: clip_grad_norm_(model.parameters(), 1.0))


@case
def accumulates() -> None:
    """As the Trainer of Hugging Face does it: gradients of four micro-batches, clipped before the optimizer steps."""
    from torch import nn

    model = ddp()
    train(model, lambda _: nn.utils.clip_grad_norm_(model.parameters(), 1.0), batches=4)


@case
def sums_over_dp_again() -> None:
    """The norm is whole on every rank; in steps 2 and 3 the script sums the squares over the ranks once more."""
    import torch.distributed as dist
    from torch import nn

    model = ddp()

    def clip(step: int) -> Any:
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if step in (2, 3):
            norm = norm.square()
            dist.all_reduce(norm)
            norm = norm.sqrt()
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        return norm

    train(model, clip)


@case
def nan_on_rank_one() -> None:
    """After the reduction, so that one replica alone has it; and a clip that begins with the second step."""
    import torch
    from torch import nn

    model = ddp()

    def clip(step: int) -> Any:
        if step == 3 and rank() == 1:
            model.module[2].bias.grad[0] = torch.nan
        return None if step == 0 else nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    train(model, clip)


@case
def two_optimizers() -> None:
    """As a GAN: one half has no gradient while the other one is clipped; the second is clipped group by group."""
    import torch
    from torch import nn

    first, second = blocks(), blocks()
    optimizers = [torch.optim.SGD(half.parameters(), lr=1e-3) for half in (first, second)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        for half, optimizer in zip((first, second), optimizers, strict=True):
            half(torch.randn(3, 7, generator=generator)).square().sum().backward()
            if half is first:
                nn.utils.clip_grad_norm_(half.parameters(), 1.0)
            else:
                norm = nn.utils.get_total_norm([p.grad for p in half.parameters()])
                for block in half:
                    nn.utils.clip_grads_with_norm_(block.parameters(), 1.0, norm)
            optimizer.step()
            optimizer.zero_grad()


@case
def only_takes_norms() -> None:
    """It multiplies by a function of its own."""
    from torch import nn

    model = ddp()

    def clip(_: int) -> Any:
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        for parameter in model.parameters():
            parameter.grad.mul_((1.0 / norm).clamp(max=1.0))
        return norm

    train(model, clip)


def scaled(unscales: bool) -> None:
    import torch
    from torch import nn

    model = blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(STEPS):
        scaler.scale(model(torch.ones(3, 7)).square().sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@case
def unscales() -> None:
    scaled(True)


@case
def forgets_unscale() -> None:
    scaled(False)


@case
def kills_the_daemon() -> None:
    import torch.distributed as dist
    from torch import nn

    model = ddp()

    def clip(step: int) -> Any:
        if step == 3:
            dist.barrier()
            if rank() == 0 and "GRADSYNC_ADDRESS" in os.environ:
                import gradsync

                with gradsync.connect() as client:
                    os.kill(client.server["pid"], signal.SIGKILL)
            dist.barrier()
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    train(model, clip, steps=12)


@case
def raises_on_rank_one() -> None:
    from torch import nn

    model = ddp()

    def clip(step: int) -> Any:
        if step == 4 and rank() == 1:
            raise ZeroDivisionError("no batch is left")
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    train(model, clip)


@case
def has_a_line_of_its_own() -> None:
    import gradsync.torch as gst

    model = ddp()
    gst.init(model)
    train(model, lambda _: gst.clip_grad_norm_(model.parameters(), 1.0))


@case
def clips_by_gradsync() -> None:
    import gradsync.torch as gst

    model = ddp()
    gst.init(model, mode="clip")
    train(model, lambda _: gst.clip_grad_norm_(model.parameters(), 1.0))


if __name__ == "__main__":
    main(atexit._run_exitfuncs)
