"""The Trainer of torchtitan on CPUs, with data and a tokenizer that need no download; for integrated_scripts.py.

torchtitan is written for GPUs and for a torch that is not released yet. This module supplies what CPUs and torch 2.13
lack; everything that has to do with meshes, gradients, norms and the optimizer is torchtitan's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def _on_cpus() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.get_device_name = lambda device=None: "CPU"
    torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1)
    torch.cpu.memory_stats = lambda device=None: {}
    torch.cpu.current_device = lambda: 0
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
    dist.set_timeout = lambda timeout, group: None  # torch has it from 2.14 on
    # Kernels of Triton, and data sets of the hub, which are large packages, and nothing here calls them.
    for name in ("distributed.minimal_async_ep.kernels", "hf_datasets.text_datasets"):
        sys.modules[f"torchtitan.{name}"] = MagicMock()


_on_cpus()

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402  (it looks for GPUs when it is imported)
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models import llama3, qwen3  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

_VOCABULARY, _WIDTH = 64, 32
_SEQUENCE = 16


class _NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *given: Any, **named: Any) -> list[int]:
        return []

    def decode(self, *given: Any, **named: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return _VOCABULARY


class _RandomTokens(BaseDataLoader):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, dp_rank: int, local_batch_size: int, **rest: Any) -> None:
        self._random = torch.Generator().manual_seed(1 + dp_rank)
        self._shape = (local_batch_size, _SEQUENCE + 1)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            tokens = torch.randint(0, _VOCABULARY, self._shape, generator=self._random)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]


def _small(build: Callable[..., list[Any]], **smaller: int) -> Callable[..., list[Any]]:
    return lambda **given: build(**{**given, **smaller})


# Where tensors are as large as those of torchtitan's smallest models, torch's own norm in float32 is off by 10⁻⁵.
llama3._build_llama3_layers = _small(llama3._build_llama3_layers, n_layers=2, dim=_WIDTH, n_heads=2, hidden_dim=64)
qwen3._build_qwen3_moe_layers = _small(
    qwen3._build_qwen3_moe_layers,
    n_layers=2,
    dim=_WIDTH,
    n_heads=2,
    n_kv_heads=1,
    num_experts=4,
    top_k=2,
    moe_hidden_dim=16,
)


def _model(experts: bool) -> Any:
    spec = qwen3.model_registry("debugmodel_moe") if experts else llama3.model_registry("debugmodel")
    model = spec.model
    model.dim, model.vocab_size = _WIDTH, _VOCABULARY
    model.norm.normalized_shape = _WIDTH
    model.tok_embeddings.num_embeddings, model.tok_embeddings.embedding_dim = _VOCABULARY, _WIDTH
    model.lm_head.in_features, model.lm_head.out_features = _WIDTH, _VOCABULARY
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec


def config_of(folder: str, steps: int, max_norm: float, *, experts: bool = False, **parallelism: Any) -> Any:
    """How to make a Trainer of two layers of Llama 3, or of Qwen 3 with experts. `parallelism` is torchtitan's own."""
    os.environ.setdefault("LOCAL_RANK", "0")
    training = {"local_batch_size": 4, "seq_len": _SEQUENCE, "steps": steps, "max_norm": max_norm}
    return Trainer.Config(
        model_spec=_model(experts),
        dump_folder=folder,
        tokenizer=_NoTokenizer.Config(),
        dataloader=_RandomTokens.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=_VOCABULARY),
        # With an ε above what rounding leaves of a gradient that is 0; else AdamW makes whole steps of it.
        optimizer=default_adamw(lr=1e-3, eps=1e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(**training, disable_cuda_graphs=True, mixed_precision_param="float32"),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor", **parallelism),
        metrics=MetricsProcessor.Config(log_freq=1),
        activation_checkpoint=None,
        debug=DebugConfig(seed=0),
    )


def _made_for_gloo(make: Callable[..., None]) -> Callable[..., None]:
    def made(trainer: Any, config: Any) -> None:
        make(trainer, config)
        for part in trainer.model_parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):  # Gloo has no operation that multiplies before it sums
                    module.set_force_sum_reduction_for_comms(True)
        if trainer.parallel_dims.pp_enabled:
            trainer.pp_schedule.step = _step_of(trainer.pp_schedule)

    return made


def _step_of(schedule: Any) -> Any:
    """`step` of a schedule with the arguments that it has from torch 2.14 on: micro-batches that are cut already."""

    def step(**given: Any) -> None:
        schedule._stage.clear_runtime_states()
        schedule._stage.has_backward = True
        schedule._step_microbatches(**given)

    return step


Trainer.__init__ = _made_for_gloo(Trainer.__init__)


def whole_weights(trainer: Any) -> dict[str, torch.Tensor]:
    """The weights of all stages, of all experts, and of all shards, on every rank."""
    named = {name: one.detach() for part in trainer.model_parts for name, one in part.named_parameters()}
    held = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in named.items()}
    everyone: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, held)
    return {name: one for stage in everyone for name, one in stage.items()}
