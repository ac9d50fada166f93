"""The exact norm and clip in a Trainer of torchtitan, over all of its axes: DP, FSDP2, TP, CP, PP and EP.

trainer = config.build()
gradsync.integrations.torchtitan.init(trainer)  # the only line that is new
trainer.train()
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torchtitan.distributed import utils

import gradsync.torch as gst
from gradsync.errors import UsageError
from gradsync.torch._reduced import _framework

from ._clip_call import clip_or_observe

__all__ = ["init"]

_MESHES = ("dense", "sparse")


def init(trainer: Any, **options: Any) -> gst.Session | gst.Observer | _framework.Off:
    """The trainer clips by gradsync: `training.max_norm` stays, and `grad_norm` in its log is the exact norm.

    Collective; before `trainer.train()`. Parts of a pipeline, experts and the meshes are read from the trainer, and
    `trainer.close()` leaves the job. Trainers derived from torchtitan's and loops with `model_parts` and
    `parallel_dims` of torchtitan are taken as well, if they clip by `torchtitan.distributed.utils.clip_grad_norm_`,
    called by that module's name.

    Args:
        trainer: what `torchtitan.trainer.Trainer.Config.build` made, or the like.
        options: of `gradsync.torch.init`: `clip`, `mode`, `job` and so on.

    Raises:
        UsageError: the trainer has no model or no meshes, it uses TorchFT, or another one was taken over and is not
            closed yet.
        As `gradsync.torch.init` does.
    """
    parts, dims = getattr(trainer, "model_parts", None), getattr(trainer, "parallel_dims", None)
    if parts is None or dims is None:
        raise UsageError(
            f"torchtitan.init({type(trainer).__name__}): it has no model_parts or no parallel_dims; give torchtitan's "
            "Trainer, or use gradsync.torch.init(model, mesh=…)"
        )
    if getattr(getattr(trainer, "ft_manager", None), "enabled", False):
        raise UsageError(
            "torchtitan.init() with TorchFT: replica groups come and go, and a job of gradsync has a fixed number of "
            "ranks; turn fault_tolerance off"
        )
    if hasattr(utils.clip_grad_norm_, "gradsync_own"):
        raise UsageError("torchtitan.init(): another trainer of this process is clipped already; close() it first")
    dims.world_mesh  # noqa: B018  makes the meshes
    meshes = {name: dims._global_meshes[name] for name in _MESHES}
    session = gst.init(parts, **{"mesh": meshes, **options})
    _take_over(trainer)
    return session


def _take_over(trainer: Any) -> None:
    """torchtitan has one function for all its clips. The trainer gives it its parameters, and what pipelines and
    experts need; the plan has both."""
    own = utils.clip_grad_norm_

    def clip_grad_norm_(
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        pp_mesh: Any = None,
        ep_enabled: bool = False,
    ) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        call = functools.partial(own, given, max_norm, norm_type, error_if_nonfinite, foreach, pp_mesh, ep_enabled)
        return clip_or_observe(call, given, max_norm, norm_type, error_if_nonfinite)

    clip_grad_norm_.gradsync_own = own  # type: ignore[attr-defined]
    utils.clip_grad_norm_ = clip_grad_norm_
    close = trainer.close

    def left() -> None:
        utils.clip_grad_norm_ = own
        trainer.close = close
        gst.close()
        close()

    trainer.close = left
