"""What one rank measures at one moment: rows of its gradients, norms as frameworks compute them, a given norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradsync._step._row import Row

from .._dtensor import is_dtensor, is_partial, local_tensor
from .._statistics._measurer import Measurer

__all__ = ["Norm", "norm_of", "own_norms", "rows_of"]


@dataclass(frozen=True)
class Norm:
    """A norm as this rank has it; if it is not reduced yet, `over` names the ranks that hold the other summands."""

    value: float | None
    dtype: str
    over: tuple[int, ...] = ()


def rows_of(measurer: Measurer, gradients: Sequence[torch.Tensor | None]) -> list[Row | None]:
    """Exact statistics of the gradients, with fingerprints."""
    table = torch.empty(len(gradients), 8, dtype=torch.int64)
    measurer.measure(measurer.arrange(gradients, True), 1, table)
    numbers, counts = table.view(torch.float64).tolist(), table.tolist()
    return [
        None if integers[0] == 0 else _row(floats, integers) for floats, integers in zip(numbers, counts, strict=True)
    ]


def _row(floats: Sequence[float], integers: Sequence[int]) -> Row:
    power_sum, low, scale, maximum = floats[1:5]
    return Row(power_sum, low, scale, maximum, integers[5], integers[6], integers[7] & 0xFFFFFFFFFFFFFFFF)


def own_norms(gradients: Sequence[torch.Tensor | None], p: float) -> list[float | None]:
    """The norm of each gradient in its own dtype, by the kernel that torch's function uses."""
    found: list[float | None] = [None if gradient is None else 0.0 for gradient in gradients]
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, gradient in enumerate(gradients):
        if gradient is not None and gradient.numel():
            alike.setdefault((gradient.device, gradient.dtype), []).append(index)
    for members in alike.values():
        held: Any = [gradients[index] for index in members]
        for index, norm in zip(members, torch.stack(list(torch._foreach_norm(held, p))).tolist(), strict=True):
            found[index] = norm
    return found


def norm_of(norm: torch.Tensor | float, rank: int) -> Norm:
    """Reads a norm without any collective."""
    if not isinstance(norm, torch.Tensor):
        return Norm(float(norm), "float64")
    dtype = str(norm.dtype).removeprefix("torch.")
    if not is_dtensor(norm):
        return Norm(float(norm), dtype)
    whole: Any = norm
    partial = [dim for dim, placement in enumerate(whole.placements) if is_partial(placement)]
    if any(getattr(whole.placements[dim], "norm_type", None) is None for dim in partial):
        return Norm(None, dtype)
    return Norm(float(local_tensor(norm)), dtype, _line_of(whole.device_mesh.mesh, rank, partial) if partial else ())


def _line_of(ranks: torch.Tensor, rank: int, dims: Sequence[int]) -> tuple[int, ...]:
    """The ranks whose coordinates differ from this rank's only along these dims."""
    place = (ranks == rank).nonzero()[0].tolist()
    index = tuple(slice(None) if dim in dims else at for dim, at in enumerate(place))
    return tuple(int(one) for one in ranks[index].flatten().tolist())
