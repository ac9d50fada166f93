"""The gradients every contender reduces, alike for all: 100 M elements in 200 tensors, or 1 M in 1,000."""

from __future__ import annotations

import math
from typing import Any

import torch

# Four shapes in turn: three matrices, one vector. 50 rounds of them are 200 tensors and 100 M elements. Four ranks get
# equal parts along dim 0, which are stretches of memory.
SHAPES = ((900, 1000), (500, 1000), (764, 784), (1024,))
SIZES = tuple(math.prod(shape) for shape in SHAPES)
# A model that has less than one round of those has biases, norms and small matrices: 250 rounds for 1 M elements.
SMALL_SHAPES = ((40, 45), (30, 40), (700,), (300,))
MAX_NORM = 1.0
SAMPLED_TENSORS = (0, 1, 2, 3, 98, -1)
SAMPLED_ELEMENTS = 64


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def tensor_shapes(elements: int) -> list[tuple[int, ...]]:
    """Shapes of the tensors in declaration order."""
    shapes = SHAPES if elements >= sum(SIZES) else SMALL_SHAPES
    a_round = sum(math.prod(shape) for shape in shapes)
    rounds, rest = divmod(elements, a_round)
    if rest:
        raise ValueError(f"elements={elements} is not a multiple of {a_round}")
    return list(shapes) * rounds


def tensor_sizes(elements: int) -> list[int]:
    """Sizes of the tensors in declaration order."""
    return [math.prod(shape) for shape in tensor_shapes(elements)]


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


def squares(views: list[torch.Tensor]) -> list[float]:
    """The sum of squares of each tensor: a check that leaves no element out."""
    return [float(torch.linalg.vector_norm(view, dtype=torch.float64).square()) for view in views]


def expected(
    ranks: int,
    dtype: torch.dtype,
    elements: int,
    part: tuple[int, int] = (0, 1),
    max_norm: float | None = MAX_NORM,
) -> tuple[float, list[torch.Tensor]]:
    """Norm and tensors of a right result, in fp64; `part` is (i, n): the i-th of n equal parts of each tensor."""
    mean = torch.stack([pattern(rank, dtype).double() for rank in range(ranks)]).mean(0).to(dtype).double()
    sizes = tensor_sizes(elements)
    by_size = {size: float(mean[:size].square().sum()) for size in set(sizes)}
    norm = sum(by_size[size] for size in sizes) ** 0.5
    scaled = mean * (1.0 if max_norm is None else min(1.0, max_norm / norm))
    index, parts = part
    return norm, [scaled[size // parts * index : size // parts * (index + 1)] for size in sizes]


def compare(who: str, found: dict[str, Any], right: dict[str, Any], tolerance: float, absolute: float = 1e-12) -> None:
    """Raises RuntimeError unless what a step answered is right: a contender that is fast and wrong is no contender."""
    if not math.isclose(found["norm"], right["norm"], rel_tol=tolerance):
        raise RuntimeError(f"{who}: norm {found['norm']}, expected {right['norm']}")
    for what in right.keys() - {"norm"}:
        for index, (value, wanted) in enumerate(zip(found[what], right[what], strict=True)):
            if not math.isclose(value, wanted, rel_tol=tolerance, abs_tol=absolute):
                raise RuntimeError(f"{who}: {what}[{index}] is {value}, expected {wanted}")
