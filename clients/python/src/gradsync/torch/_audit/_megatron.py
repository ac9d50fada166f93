"""Megatron-Core: its parallel groups as a mesh, and the attributes of parameters that say how they are cut.

Its optimizers clip by `clip_grad_by_total_norm_fp32`, which is given main parameters: the model's own, or their float32
copies, which are their `main_param`. Ranks are in the order tp, cp, dp, pp, the first fastest.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._mesh_axes import JobMesh
from .._placed import Sharded
from ._stand_ins import NotSeen

__all__ = ["mesh_and_cuts", "models_of_mains", "tied_embeddings", "with_filtered"]

_STATE = "megatron.core.parallel_state"
_CLIPS = "megatron.core.optimizer.clip_grads"
_TIED = "shared_embedding"  # the stages that hold it do not know its names on each other


def _state() -> Any:
    """The module with the parallel groups, where they are made; else None."""
    state: Any = sys.modules.get(_STATE)
    return state if state is not None and state.model_parallel_is_initialized() else None


def models_of_mains() -> dict[int, torch.nn.Parameter]:
    """By the id of a float32 copy the parameter of the model."""
    if _state() is None:
        return {}
    living = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Parameter)]
    return {id(one.main_param): one for one in living if getattr(one, "main_param", None) is not None}


def with_filtered(given: Sequence[torch.Tensor], held: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients that Megatron's norm is one of: those that are given to it, and of what is held those that its
    filter left out on this rank, because another rank or stage gives its copy."""
    clips: Any = sys.modules.get(_CLIPS)
    if clips is None or _state() is None:
        return list(given)
    known = set(map(id, given))
    left_out = [
        one.grad
        for one in held
        if one.grad is not None
        and id(one.grad) not in known
        and not (clips.param_is_not_shared(one) and clips.param_is_not_tensor_parallel_duplicate(one))
    ]
    return [*given, *left_out]


def tied_embeddings(named: Mapping[str, torch.nn.Parameter]) -> dict[str, str]:
    """The id of each embedding that stages share: Megatron sums its gradient over them and counts it once.

    Raises:
        NotSeen: a parameter is marked as a copy, and of what is not known.
    """
    if _state() is None:
        return {}
    for name, one in named.items():
        if getattr(one, "shared", False) and not getattr(one, "shared_embedding", False):
            raise NotSeen(
                f"{_version()}: not seen, because '{name}' is marked as shared, and nothing says which parameter of "
                f"which stage it is a copy of; --tied NAME,{name} tells it"
            )
    return {name: _TIED for name, one in named.items() if getattr(one, "shared_embedding", False)}


def mesh_and_cuts(named: Mapping[str, torch.nn.Parameter], rank: int) -> tuple[dict[str, int], list[Sharded]] | None:
    """The mesh, and what is cut along tp; None without Megatron.

    Raises:
        NotSeen: the groups or parameters are of a kind that is not known here.
    """
    state = _state()
    if state is None:
        return None
    try:
        return _read(state, named, rank)
    except (AttributeError, TypeError, AssertionError) as error:
        raise NotSeen(f"{_version()}: not seen, because its parallel state is not as is known: {error!r}") from error


def _read(state: Any, named: Mapping[str, torch.nn.Parameter], rank: int) -> tuple[dict[str, int], list[Sharded]]:
    groups = {
        "pp": state.get_pipeline_model_parallel_group(),
        "dp": state.get_data_parallel_group(),
        "cp": state.get_context_parallel_group(),
        "tp": state.get_tensor_model_parallel_group(),
    }
    axes = {axis: dist.get_world_size(group) for axis, group in groups.items()}
    mesh = JobMesh("mesh", axes, rank)
    for axis, group in groups.items():
        line = dist.get_process_group_ranks(group)
        if len(line) > 1 and mesh.axes_of(line) != (axis,):
            raise NotSeen(
                f"{_version()}: not seen, because the ranks of {axis} are {line}, not in the order tp, cp, dp, pp"
            )
    for name, one in named.items():
        if not getattr(one, "allreduce", True):
            raise NotSeen(f"{_version()}: not seen, because '{name}' is of experts, whose groups are not read")
        main = getattr(one, "main_param", None)
        if main is not None and main.numel() != one.numel():
            raise NotSeen(f"{_version()}: not seen, because its distributed optimizer keeps pieces of flat buffers")
    cuts = [
        Sharded(name, int(one.partition_dim), "tp")  # type: ignore[attr-defined]
        for name, one in named.items()
        if axes["tp"] > 1 and getattr(one, "tensor_model_parallel", False)
    ]
    return axes, cuts


def _version() -> str:
    return f"Megatron-Core {getattr(sys.modules.get('megatron.core'), '__version__', 'of an unknown version')}"
