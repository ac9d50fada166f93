"""Training scripts with DeepSpeed, for test_audit_deepspeed.py; $STAGE is the ZeRO stage, $DTYPE that of the model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from audit_scripts import STEPS, blocks, case, main, rank


def engine_of(**more: Any) -> Any:
    import deepspeed

    # Else a C++ compiler runs for a minute; Gloo does the same.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    dtype = os.environ.get("DTYPE", "float32")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 3,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": int(os.environ.get("STAGE", "0"))},
        "gradient_clipping": 0.5,
    }
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        if config["zero_optimization"]["stage"] == 1:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    if dtype == "float16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 100}
    model = blocks()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config | more)[0]


def train(engine: Any, before_step: Any = None) -> None:
    import torch

    generator = torch.Generator().manual_seed(rank())
    dtype = getattr(torch, os.environ.get("DTYPE", "float32"))
    for _ in range(STEPS + 1):
        batch = torch.randn(3, 7, generator=generator).to(dtype)
        engine.backward(engine(batch).float().square().sum())
        if before_step is not None:
            before_step()
        engine.step()


@case
def trains() -> None:
    train(engine_of())


@case
def steps_by_the_unfused_optimizer() -> None:
    """Its class alone, because DeepSpeed's engine refuses fp16 on most CPUs."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    model = blocks().half()
    optimizer = FP16_UnfusedOptimizer(torch.optim.SGD(model.parameters(), 1e-2), static_loss_scale=256.0, clip_grad=0.5)
    generator = torch.Generator().manual_seed(rank())
    for _ in range(STEPS + 1):
        batch = torch.randn(3, 7, generator=generator).half()
        (256.0 * model(batch).float().square().mean()).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


@case
def clips_by_torch_what_zero_keeps_elsewhere() -> None:
    from torch import nn

    engine = engine_of(gradient_clipping=0.0)
    train(engine, lambda: nn.utils.clip_grad_norm_(engine.parameters(), 0.5))


@case
def takes_muon_for_adam() -> None:
    """Only says so, and steps by AdamW."""
    engine = engine_of()
    next(engine.module.parameters()).use_muon = True
    train(engine)


@case
def is_another_version() -> None:
    """An attribute that the audit reads is not there while the optimizer steps."""
    engine = engine_of()
    places = engine.optimizer.grad_partition_insertion_offset
    engine.module.register_forward_pre_hook(
        lambda *_: setattr(engine.optimizer, "grad_partition_insertion_offset", places)
    )
    train(engine, lambda: delattr(engine.optimizer, "grad_partition_insertion_offset"))
    print("all steps are made", flush=True)


if __name__ == "__main__":
    main()
