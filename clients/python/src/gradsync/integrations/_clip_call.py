"""The clip of a framework, by the model of the last `gradsync.torch.init`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradsync.torch._reduced import _init
from gradsync.torch._reduced._observer import Observer
from gradsync.torch._reduced._session import Session

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler
    from torch.optim import Optimizer

Clip = Callable[[], Any]


def clip_or_observe(
    own: Clip,
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    scaler: GradScaler | None = None,
    optimizers: Sequence[Optimizer] = (),
) -> Any:
    """Mode `clip`: as `gradsync.torch.clip_grad_norm_`. Else what `own()` returns, which mode `observe` looks at.

    Raises:
        as `gradsync.torch.clip_grad_norm_` does, in mode `clip`.
    """
    session = _init._session()
    if isinstance(session, Session):
        held = scaler if scaler is not None and scaler.is_enabled() else None
        stepped = list(optimizers) if held is not None else None
        given = (list(parameters), max_norm, norm_type, error_if_nonfinite)
        return session.clip_grad_norm_(*given, scaler=held, optimizers=stepped, plain=True)
    measured = isinstance(session, Observer) and session.measure()
    norm = own()
    if isinstance(session, Observer):
        session.finish(measured, norm, norm_type)
    return norm


def bare(optimizer: Any) -> Any:
    """The optimizer of torch inside what frameworks wrap around it."""
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
