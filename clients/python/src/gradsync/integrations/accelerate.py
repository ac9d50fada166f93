"""The exact norm and clip in a loop of Accelerate.

model, optimizer, data = accelerator.prepare(model, optimizer, data)
gradsync.integrations.accelerate.init(accelerator)  # the only line that is new
… accelerator.clip_grad_norm_(model.parameters(), 1.0) …
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import accelerate
import torch
from accelerate import DistributedType

import gradsync.torch as gst
from gradsync.errors import UsageError
from gradsync.torch._reduced import _framework

from ._clip_call import bare, clip_or_observe

__all__ = ["init"]

_REFUSED = {
    DistributedType.DEEPSPEED: "DeepSpeed's engine clips in its own step; `gradsync audit` and `observe` see that norm",
    DistributedType.MEGATRON_LM: "Megatron's optimizer clips in its own step; `gradsync audit` and `observe` see it",
}


def init(
    accelerator: accelerate.Accelerator, model: torch.nn.Module | None = None, **options: Any
) -> gst.Session | gst.Observer | _framework.Off:
    """`accelerator.clip_grad_norm_` is gradsync's from then on. Collective; after `accelerator.prepare`.

    `accelerator.end_training()` leaves the job. Inside `accumulate()` the micro-batches before the last are not
    reduced, and are left to Accelerate's own clip.

    Args:
        accelerator: one that has prepared the model, for one process, DDP or FSDP2.
        model: which of the prepared models is clipped; by default all of them together.
        options: of `gradsync.torch.init`: `mesh`, `clip`, `mode`, `job` and so on.

    Raises:
        UsageError: nothing is prepared yet, or the backend clips by itself (DeepSpeed, Megatron-LM).
        As `gradsync.torch.init` does.
    """
    refused = _REFUSED.get(accelerator.distributed_type)
    if refused is not None:
        raise UsageError(f"accelerate.init() with distributed_type {accelerator.distributed_type.value}: {refused}")
    parts = [model] if model is not None else list(accelerator._models)
    if not parts:
        raise UsageError(
            "accelerate.init() before accelerator.prepare(model): no model is there to clip; prepare first"
        )
    session = gst.init(parts[0] if len(parts) == 1 else parts, **options)
    _take_over(accelerator)
    return session


def _take_over(accelerator: accelerate.Accelerator) -> None:
    kind = type(accelerator)

    def clip_grad_norm_(parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> Any:
        given = list(parameters)

        def own() -> Any:
            return kind.clip_grad_norm_(accelerator, given, max_norm, norm_type)

        if not accelerator.sync_gradients:
            return own()
        accelerator.unscale_gradients()
        optimizers = [bare(one) for one in accelerator._optimizers]
        return clip_or_observe(own, given, max_norm, float(norm_type), scaler=accelerator.scaler, optimizers=optimizers)

    def end_training() -> None:
        gst.close()
        kind.end_training(accelerator)

    accelerator.clip_grad_norm_ = clip_grad_norm_
    accelerator.end_training = end_training
