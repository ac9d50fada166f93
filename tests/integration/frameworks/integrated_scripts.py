"""Scripts of trainers with gradsync.integrations; for test_integrations.py.

integrated_scripts.py NAME FOLDER [own]: with `own` the framework does everything by itself. Leaves FOLDER/RANK.pt: the
weights after the last step, and what each step's norm was.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

STEPS = 5
MAX_NORM = 0.5
GUIDE = (Path(__file__).parents[3] / "docs/guide.md").read_text()
(TORCHTITAN,) = re.findall(r"^```python\n(import gradsync\.integrations\.torchtitan\n.*?)^```$", GUIDE, re.M | re.S)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 5))


def leave(rank: int, model: nn.Module, norms: list[float]) -> None:
    leave_weights(rank, {name: whole(weight.detach()) for name, weight in model.named_parameters()}, norms)


def whole(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.clone()


def leave_weights(rank: int, weights: dict[str, torch.Tensor], norms: list[float]) -> None:
    torch.save({"weights": weights, "norms": norms}, Path(sys.argv[2]) / f"{rank}.pt")


def is_own() -> bool:
    return sys.argv[3:] == ["own"]


def without_gradsync(lines: str) -> str:
    return "".join(line for line in lines.splitlines(keepends=True) if "gradsync" not in line)


def samples(width: int) -> torch.Tensor:
    return torch.randn(64, width, generator=torch.Generator().manual_seed(1))


def in_accelerate(accumulate: int = 1, sharded: bool = False) -> None:
    from accelerate import Accelerator

    import gradsync.integrations.accelerate

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    if sharded:
        fsdp2_on_cpus(accelerator)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    data = torch.utils.data.DataLoader(samples(7), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    assert sharded is isinstance(next(model.parameters()), DTensor)
    norms: list[float] = []
    if not is_own():
        gradsync.integrations.accelerate.init(accelerator)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)))
            optimizer.step()
            optimizer.zero_grad()
    leave(accelerator.process_index, accelerator.unwrap_model(model), norms)
    accelerator.end_training()


def fsdp2_on_cpus(accelerator: Any) -> None:
    """`AcceleratorState.__init__` takes a plugin of FSDP for GPUs and the like alone; what follows runs on CPUs."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin

    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=50, cpu_ram_efficient_loading=False
    )
    accelerator.state.distributed_type = DistributedType.FSDP


def in_accelerate_sharded() -> None:
    in_accelerate(sharded=True)


def unprepared_accelerate() -> None:
    from accelerate import Accelerator

    import gradsync.integrations.accelerate
    from gradsync.errors import UsageError

    try:
        gradsync.integrations.accelerate.init(Accelerator(cpu=True))
    except UsageError as refused:
        print(refused)


def in_accelerate_accumulating() -> None:
    in_accelerate(2)


def in_transformers(max_norm: float = MAX_NORM) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    import gradsync.integrations.transformers

    torch.manual_seed(0)
    shape = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=1, num_attention_heads=2))
    rows = torch.randint(0, 16, (64, 6), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        sys.argv[2],
        max_steps=STEPS,
        max_grad_norm=max_norm,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        gradient_accumulation_steps=2,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    if not is_own():
        gradsync.integrations.transformers.init(trainer)
    trainer.train()
    norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    leave(arguments.process_index, model, norms)


def in_transformers_unclipped() -> None:
    in_transformers(0.0)


def in_lightning(strategy: str = "ddp", accumulate: int = 1, max_norm: float | None = MAX_NORM) -> None:
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import gradsync.torch as gst
    from gradsync.integrations.lightning import GradsyncCallback, GradsyncStrategy

    norms: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = layers()

        def configure_model(self) -> None:
            if strategy == "fsdp2":
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])
            if strategy == "tp":
                self.model[1] = nn.Tanh()  # torch alone clips no model that is DTensors in part
                split = {
                    "0": ColwiseParallel(output_layouts=Replicate()),
                    "2": RowwiseParallel(input_layouts=Replicate()),
                }
                parallelize_module(self.model, self.device_mesh["tensor_parallel"], split)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 0.01)

        def optimizer_step(self, *given: Any, **named: Any) -> None:
            super().optimizer_step(*given, **named)
            if not is_own():
                report = self.trainer.strategy.report if strategy == "gradsync" else gst.last_report()
                if report is not None:  # mode observe joins beside the first steps
                    norms.append(report.norm)

    meshes = {"fsdp2": (2, 1), "tp": (1, 2)}
    own = ModelParallelStrategy(*meshes[strategy]) if strategy in meshes else "ddp"
    given: dict[str, Any] = {"strategy": own}
    if not is_own():
        given = (
            {"strategy": GradsyncStrategy()} if strategy == "gradsync" else {**given, "callbacks": [GradsyncCallback()]}
        )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        max_steps=STEPS,
        gradient_clip_val=max_norm,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[2],
        **given,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(samples(7), batch_size=2))
    leave(trainer.global_rank, module.model, norms)


def in_lightning_sharded() -> None:
    in_lightning("fsdp2")


def in_lightning_split() -> None:
    in_lightning("tp")


def in_lightning_unclipped() -> None:
    in_lightning(max_norm=None)


def in_lightning_synced() -> None:
    in_lightning("gradsync")


def in_lightning_synced_accumulating() -> None:
    in_lightning("gradsync", accumulate=2)


def in_torchtitan(**given: Any) -> None:
    """The lines of the guide, as they stand there; alone without the line of gradsync."""
    import torch.distributed as dist
    import torchtitan_on_cpus

    norms: list[float] = []
    log = torchtitan_on_cpus.MetricsProcessor.log

    def logged(processor: Any, step: int, loss: float, largest: float, norm: float, **rest: Any) -> None:
        norms.append(norm)
        log(processor, step, loss, largest, norm, **rest)

    torchtitan_on_cpus.MetricsProcessor.log = logged
    names = {"config": torchtitan_on_cpus.config_of(sys.argv[2], STEPS, MAX_NORM, **given)}
    exec(without_gradsync(TORCHTITAN) if is_own() else TORCHTITAN, names)
    trainer: Any = names["trainer"]
    leave_weights(dist.get_rank(), torchtitan_on_cpus.whole_weights(trainer), norms)
    trainer.close()
    dist.destroy_process_group()


def in_torchtitan_stages() -> None:
    in_torchtitan(pipeline_parallel_degree=2, pipeline_parallel_schedule="1F1B")


def in_torchtitan_experts() -> None:
    in_torchtitan(experts=True, expert_parallel_degree=2)


def refused_in_torchtitan() -> None:
    from types import SimpleNamespace

    import gradsync.integrations.torchtitan
    from gradsync.errors import UsageError

    elastic = SimpleNamespace(model_parts=[], parallel_dims=object(), ft_manager=SimpleNamespace(enabled=True))
    for trainer in (layers(), elastic):
        try:
            gradsync.integrations.torchtitan.init(trainer)
        except UsageError as refused:
            print("refused:", refused)


def refused_lightning(**given: Any) -> None:
    """On one rank: what a Trainer with gradsync raises when fit begins."""
    import lightning

    from gradsync.errors import UsageError
    from gradsync.integrations.lightning import GradsyncCallback, GradsyncStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = layers()
            self.automatic_optimization = "manual" not in given

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(self.parameters()) if "lbfgs" in given else torch.optim.SGD(self.parameters(), 0.1)

    way = {"strategy": GradsyncStrategy()} if given.pop("sync", False) else {"callbacks": [GradsyncCallback()]}
    options = {name: value for name, value in given.items() if name not in ("manual", "lbfgs")}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=1, logger=False, enable_checkpointing=False, **way, **options
    )
    try:
        trainer.fit(Module(), torch.utils.data.DataLoader(samples(7), batch_size=2))
    except UsageError as refused:
        print("refused:", refused)


def refused_in_lightning() -> None:
    refused_lightning(manual=True)
    refused_lightning(manual=True, sync=True)
    refused_lightning(gradient_clip_val=1.0, gradient_clip_algorithm="value")
    refused_lightning(lbfgs=True, sync=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
