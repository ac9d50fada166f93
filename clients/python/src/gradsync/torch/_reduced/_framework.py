"""The functions of training without gradsync: torch's own, and torchtitan's for pipelines and experts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.utils.clip_grad import clip_grad_norm_ as _torch_clip_grad_norm_

import gradsync
from gradsync.trackers._report_log import LogsReports

from .._dtensor import is_dtensor
from .._unchanged_state import UnchangedState

if TYPE_CHECKING:
    import os

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Off", "clip_grad_norm_", "clip_grads_with_norm_", "get_total_norm"]

Tensors = torch.Tensor | Iterable[torch.Tensor]
_utils: Any = torch.nn.utils  # has get_total_norm and clip_grads_with_norm_ since torch 2.6


class Off(UnchangedState, LogsReports):
    """What `init` returns in mode `off`. It logs nothing."""

    report: gradsync.StepReport | None = None

    def explain(self) -> dict[str, Any]:
        return {}

    def save_declaration(self, path: str | os.PathLike[str]) -> None:
        """Writes nothing, because nothing is declared."""

    def pause(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        """Does nothing, because there is no job to leave."""


def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    norm: torch.Tensor = _utils.get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
    return norm


def clip_grads_with_norm_(
    parameters: Tensors, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None
) -> None:
    _utils.clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    pp_mesh: DeviceMesh | None = None,
    ep_enabled: bool = False,
) -> torch.Tensor:
    if pp_mesh is None and not ep_enabled:
        return _torch_clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    groups = _by_expert_mesh(held) if ep_enabled else [held]
    norm = _combined([_whole_norm(group, norm_type, error_if_nonfinite, foreach) for group in groups], norm_type)
    if pp_mesh is not None:
        norm = _over(norm, norm_type, pp_mesh)
    for group in groups:
        clip_grads_with_norm_(group, max_norm, norm, foreach)
    return norm


def _by_expert_mesh(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    experts = [p for p in parameters if is_dtensor(p) and "ep" in (p.device_mesh.mesh_dim_names or ())]  # type: ignore[attr-defined]
    known = set(map(id, experts))
    return [experts, [p for p in parameters if id(p) not in known]]


def _whole_norm(
    parameters: Sequence[torch.Tensor], norm_type: float, error_if_nonfinite: bool, foreach: bool | None
) -> torch.Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm: Any = get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
    whole: torch.Tensor = norm.full_tensor() if is_dtensor(norm) else norm
    return whole


def _combined(norms: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    device = next((norm.device for norm in norms if norm.device.type != "cpu"), norms[0].device)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), norm_type)
    return total


def _over(norm: torch.Tensor, norm_type: float, mesh: DeviceMesh) -> torch.Tensor:
    if math.isinf(norm_type):
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=mesh.get_group())
        return norm
    norm = norm.pow(norm_type)
    dist.all_reduce(norm, op=dist.ReduceOp.SUM, group=mesh.get_group())
    return norm.pow(1.0 / norm_type)
