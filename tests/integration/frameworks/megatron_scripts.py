"""Training scripts with Megatron-Core's optimizer and tensor-parallel layers, for test_audit_megatron.py.

Its clip asks for CUDA by name; here it is told that tensors on CPUs are what it wants.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from audit_scripts import STEPS, case, main, rank


def on_cpus() -> None:
    import torch

    kind = torch.Tensor.type

    def here(make: Any) -> Any:
        return lambda *args, device=None, **kwargs: make(*args, device=None if device == "cuda" else device, **kwargs)

    def kind_here(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        found = kind(tensor, *args, **kwargs)
        return "torch.cuda.FloatTensor" if found == "torch.FloatTensor" else found

    torch.zeros, torch.tensor, torch.Tensor.type = here(torch.zeros), here(torch.tensor), kind_here


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


def train(model: Any) -> None:
    """The optimizer copies `main_grad`, which Megatron's data parallelism fills, then clips and steps."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer

    on_cpus()
    config = OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=1.0)
    optimizer = FP32Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), config, lambda *_: None)
    optimizer.model_parallel_group = optimizer.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    for step in range(STEPS + 1):
        for parameter in model.parameters():
            parameter.main_grad = parameter.detach().clone() * (step + 1)
        optimizer.step()


@case
def marks_what_is_cut() -> None:
    train(tensor_parallel())


@case
def forgets_to_mark_the_cuts() -> None:
    train(tensor_parallel(marked=False))


if __name__ == "__main__":
    main(__file__)
