"""Reads the arguments of torch's clip functions, and finds which parameters the given gradients belong to."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch

from ._dtensor import local_tensor

__all__ = ["ClipCall", "gradients_among", "owners", "read_call"]


@dataclass(frozen=True, slots=True)
class ClipCall:
    """One call of a clip function.

    `kind` is "clip" (norm and product), "total" (the norm of gradients) or "apply" (the product, by a given norm).
    `given` are parameters, or gradients for "total". None where the kind has no such argument: `p`, the order of the
    norm; `norm`, the norm that is given; `limit`, the `max_norm`. `filtered` says that a framework has taken out what
    other ranks count already, so that the norm is one of more gradients than are given.
    """

    kind: str
    given: Sequence[torch.Tensor]
    p: float | None
    norm: Any
    limit: Any
    filtered: bool = False


def read_call(
    kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ClipCall, tuple[Any, ...], dict[str, Any]]:
    """The call, and the arguments to hand on: a generator can be read only once, so another one takes its place."""
    filtered = kind == "filtered"
    kind = "total" if filtered else kind
    name = "grads_for_norm" if filtered else "tensors" if kind == "total" else "parameters"
    found = args[0] if args else kwargs.get(name)
    if isinstance(found, (torch.Tensor, type(None))):
        given = [] if found is None else [found]
    else:
        given = list(found)
        again = _iter_like(found, given)
        args, kwargs = ((again, *args[1:]), kwargs) if args else (args, {**kwargs, name: again})
    p = _argument(args, kwargs, 2, "norm_type", 2.0) if kind == "clip" else None
    p = _argument(args, kwargs, 1, "norm_type", 2.0) if kind == "total" else p
    norm = _argument(args, kwargs, 2, "total_norm", None) if kind == "apply" else None
    limit = None if kind == "total" else _argument(args, kwargs, 1, "max_norm", None)
    return ClipCall(kind, given, p, norm, limit, filtered), args, kwargs


def _iter_like(found: Any, items: list[torch.Tensor]) -> Any:
    """The items, as a generator where they came from one, because torch warns only of empty generators."""
    return (item for item in items) if isinstance(found, GeneratorType) else items


def gradients_among(parameters: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> set[int]:
    """The indices of the parameters whose gradients these tensors are, or are this rank's parts of.

    Empty parts cannot be told apart.
    """
    known: dict[object, int] = {}
    for index, gradient in enumerate(parameter.grad for parameter in parameters):
        if gradient is not None:
            known[_place(gradient)] = known[id(gradient)] = index
    found = [known.get(id(tensor), known.get(_place(tensor)) if tensor.numel() else None) for tensor in tensors]
    return {index for index in found if index is not None}


def owners(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that have these gradients."""
    wanted = set(map(id, gradients))
    # A parameter that is a DTensor is not an instance of nn.Parameter.
    leaves = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.is_leaf]
    return [one for one in leaves if one.grad is not None and id(one.grad) in wanted]


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Where this rank's part of a tensor lies: the same for a DTensor and for what its `to_local()` gives."""
    local = local_tensor(tensor)
    return local.data_ptr(), local.numel()


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)
