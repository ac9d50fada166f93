"""Training scripts with Megatron-Core's optimizer and tensor-parallel layers, for test_audit_megatron.py.

Its clip asks for CUDA by name; here it is told that tensors on CPUs are what it wants.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from audit_scripts import STEPS, case, main, rank


@functools.cache
def on_cpus() -> None:
    import contextlib

    import torch
    from megatron.core import tensor_parallel

    kind = torch.Tensor.type

    def here(make: Any) -> Any:
        return lambda *args, device=None, **kwargs: make(*args, device=None if device == "cuda" else device, **kwargs)

    def kind_here(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        found = kind(tensor, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found

    torch.zeros, torch.tensor, torch.Tensor.type = here(torch.zeros), here(torch.tensor), kind_here
    torch.Tensor.cuda = lambda tensor, *_args, **_kwargs: tensor
    torch.cuda.current_device = lambda: torch.device("cpu")
    tensor_parallel.get_cuda_rng_tracker().fork = contextlib.nullcontext  # for dropout, which is 0 here


def tensor_parallel(marked: bool = True) -> Any:
    """A column and a row of tensor parallelism, and a norm weight that is whole."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
    from torch import nn

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(0)
    model = nn.Module()
    model.w1 = nn.Parameter(torch.randn(6, 4).chunk(2, 0)[rank()].clone())
    model.w2 = nn.Parameter(torch.randn(4, 6).chunk(2, 1)[rank()].clone())
    model.scale = nn.Parameter(torch.randn(4))
    if marked:
        set_tensor_model_parallel_attributes(model.w1, True, 0, 1)
        set_tensor_model_parallel_attributes(model.w2, True, 1, 1)
    return model


def optimizer_of(model: Any, copies: bool = False, clip_grad: float = 1.0) -> Any:
    """With `copies` the weights are in bfloat16, and the optimizer steps copies of them in float32."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer

    on_cpus()
    config = OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=clip_grad, bf16=copies)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer: Any = (
        Float16OptimizerWithFloat16Params(inner, config, None, lambda *_: None)
        if copies
        else FP32Optimizer(inner, config, lambda *_: None)
    )
    optimizer.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    return ChainedOptimizer([optimizer])


def train(model: Any, **kinds: Any) -> None:
    """The optimizer copies `main_grad`, which Megatron's data parallelism fills, then clips and steps."""
    optimizer = optimizer_of(model, **kinds)
    for step in range(STEPS + 1):
        for parameter in model.parameters():
            parameter.main_grad = parameter.detach().float() * (step + 1)
        optimizer.step()


def stage_of_a_gpt() -> Any:
    """One of two stages; the embedding of the first is the output layer of the last, as a parameter of its own."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    on_cpus()
    config = TransformerConfig(
        num_layers=2,
        hidden_size=8,
        num_attention_heads=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
        masked_softmax_fusion=False,
    )
    torch.manual_seed(rank())
    return GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=16,
        max_sequence_length=4,
        pre_process=rank() == 0,
        post_process=rank() == 1,
        share_embeddings_and_output_weights=True,
    )


def train_stages(model: Any, **kinds: Any) -> None:
    """One microbatch per step: the first stage sends what it made, and the last one the gradient of that."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    optimizer = optimizer_of(model, **kinds)
    tokens = torch.randint(0, 16, (1, 4), generator=torch.Generator().manual_seed(0))
    inputs = tokens, torch.arange(4).view(1, 4), torch.ones(1, 1, 4, 4).triu(1).bool()
    between = torch.empty(4, 1, 8)
    for _ in range(STEPS + 1):
        if rank() == 0:
            hidden = model(*inputs)
            dist.send(hidden.detach(), 1)
            dist.recv(between, 1)
            hidden.backward(between)
        else:
            dist.recv(between, 0)
            hidden = between.clone().requires_grad_()
            model.set_input_tensor(hidden)
            model(*inputs, labels=tokens).sum().backward()
            dist.send(hidden.grad, 0)
        dist.all_reduce(model.shared_embedding_or_output_weight().grad, group=parallel_state.get_embedding_group())
        for parameter in model.parameters():
            parameter.main_grad = parameter.grad
        optimizer.step()
        optimizer.zero_grad()


@case
def marks_what_is_cut() -> None:
    train(tensor_parallel())


@case
def forgets_to_mark_the_cuts() -> None:
    train(tensor_parallel(marked=False))


@case
def keeps_float32_copies() -> None:
    import torch

    train(tensor_parallel().to(torch.bfloat16), copies=True)


@case
def clips_nothing_and_takes_the_norm() -> None:
    train(tensor_parallel(), clip_grad=0.0)


@case
def ties_its_embedding_over_stages() -> None:
    train_stages(stage_of_a_gpt())


@case
def ties_its_embedding_and_clips_nothing() -> None:
    train_stages(stage_of_a_gpt(), clip_grad=0.0)


@case
def counts_its_embedding_twice() -> None:
    model = stage_of_a_gpt()
    model.shared_embedding_or_output_weight().shared = False
    train_stages(model)


@case
def marks_a_copy_of_an_unknown_weight() -> None:
    model = tensor_parallel()
    model.scale.shared = True
    train(model)


if __name__ == "__main__":
    main()
