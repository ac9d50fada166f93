"""Two ranks that Lightning starts by itself; gradsync measures the gradients that its DDP strategy reduced."""

from __future__ import annotations

import json
import sys

import pytorch_lightning as pl
import torch

import gradsync.torch as gst


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        return self.model(batch).sum()

    def on_fit_start(self) -> None:
        self.session = gst.init(self.model)

    def on_before_optimizer_step(self, optimizer: object) -> None:
        norm = float(gst.clip_grad_norm_(self.model.parameters(), 1.0))
        job = self.session._job
        found = {"job": job.name, "rank": job.rank, "world_size": job.world_size, "norm": norm}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    def on_fit_end(self) -> None:
        gst.close()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2))
