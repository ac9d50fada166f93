"""The gradients every contender of the step benchmarks reduces: 100 M elements in 200 tensors, alike for all."""

from __future__ import annotations

from typing import Any

import torch

# Four sizes in turn: two matrices, one odd one, one vector. 50 rounds of them are 200 tensors and 100 M elements.
SIZES = (900_000, 500_000, 598_976, 1_024)
MAX_NORM = 1.0
SAMPLED_TENSORS = (0, 1, 2, 3, 98, 199)
SAMPLED_ELEMENTS = 64


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def tensor_sizes(elements: int) -> list[int]:
    """Sizes of the tensors in declaration order."""
    rounds, rest = divmod(elements, sum(SIZES))
    if rest:
        raise ValueError(f"elements={elements} is not a multiple of {sum(SIZES)}")
    return list(SIZES) * rounds


def pattern(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank's gradients hold before a step: each tensor is the beginning of this."""
    generator = torch.Generator().manual_seed(17 + rank)
    return torch.randn(max(SIZES), generator=generator).to(dtype)


def fill(views: list[torch.Tensor], source: torch.Tensor) -> None:
    """Writes a rank's gradients anew, outside the timed part of every contender."""
    for view in views:
        view.copy_(source[: view.numel()])


def sample(views: list[torch.Tensor]) -> list[float]:
    """Some elements after the step, so that a contender that computed something else is noticed."""
    return [x for i in SAMPLED_TENSORS for x in views[i % len(views)][:SAMPLED_ELEMENTS].double().tolist()]


def result(norm: float, views: list[torch.Tensor]) -> dict[str, Any]:
    """What a step answers: its norm and a sample."""
    return {"norm": norm, "sample": sample(views)}


def expected(ranks: int, dtype: torch.dtype, elements: int) -> tuple[float, list[float]]:
    """Norm and sample of a right result, in fp64."""
    mean = (sum(pattern(rank, dtype).double() for rank in range(ranks)) / ranks).to(dtype).double()
    sizes = tensor_sizes(elements)
    squares = {size: float(mean[:size].square().sum()) for size in SIZES}
    norm = sum(squares[size] for size in sizes) ** 0.5
    return norm, sample([mean[:size] * min(1.0, MAX_NORM / norm) for size in sizes])
