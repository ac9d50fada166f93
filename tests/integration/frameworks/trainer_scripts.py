"""Unchanged scripts of HF's Trainer, Accelerate and Lightning, each of which clips by itself; for test_trainers.py.

Nothing in them knows of gradsync. `WITHOUT=1` leaves a tensor out of Accelerate's clip.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

STEPS = 4


def layers() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 5))


def hf_trainer() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    shape = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=1, num_attention_heads=2))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (64, 6))]
    arguments = TrainingArguments(
        sys.argv[2], max_steps=STEPS, max_grad_norm=1.0, use_cpu=True, report_to=[], save_strategy="no"
    )
    Trainer(model, arguments, train_dataset=data).train()


def accelerate() -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.DataLoader(torch.randn(STEPS * 8, 7), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    left_out = int(os.environ.get("WITHOUT", "0"))
    for batch in data:
        accelerator.backward(model(batch).square().mean())
        accelerator.clip_grad_norm_([*model.parameters()][left_out:], 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


def lightning_trainer() -> None:
    import lightning
    import torch

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = layers()

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_steps=STEPS,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=sys.argv[2],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(STEPS * 8, 7), batch_size=4))


if __name__ == "__main__":
    {one.__name__: one for one in (hf_trainer, accelerate, lightning_trainer)}[sys.argv[1]]()
    atexit._run_exitfuncs()  # what observes it writes its last step
    sys.stdout.flush()
    os._exit(0)  # torch's Gloo ends some processes by an abort, where a thread outlives the interpreter
