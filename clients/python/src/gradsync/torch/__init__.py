"""Gradients of a torch module through the sidecar: two lines in a training loop.

gs = gradsync.torch.attach(model, clip=gradsync.Clip(max_norm=1.0))
loss.backward(); report = gs.step(optimizer)

Or, where FSDP2, TP, PP, EP or DDP reduce the gradients, their exact norm and clip:

gradsync.torch.init(model, mesh=device_mesh)
loss.backward(); norm = gradsync.torch.clip_grad_norm_(model.parameters(), 1.0)
"""

from ._audit._line import Audit, audit
from ._errors import (
    DeferredClipFailed,
    GradientRefused,
    LateGradient,
    ModeNotAvailable,
    ModuleRefused,
    ParameterChanged,
)
from ._placed import Experts, Sharded
from ._reduced._init import (
    clip_grad_norm_,
    clip_grads_with_norm_,
    close,
    get_total_norm,
    init,
    last_report,
    observe,
    verify_weights,
)
from ._reduced._observation import Observation
from ._reduced._observer import Observer
from ._reduced._session import Session
from ._synced._attach import attach
from ._synced._gradsync import GradSync
from ._synced._off import OffSync
from ._synced._recorder import Counters

__all__ = [
    "Audit",
    "Counters",
    "DeferredClipFailed",
    "Experts",
    "GradSync",
    "GradientRefused",
    "LateGradient",
    "ModeNotAvailable",
    "ModuleRefused",
    "Observation",
    "Observer",
    "OffSync",
    "ParameterChanged",
    "Session",
    "Sharded",
    "attach",
    "audit",
    "clip_grad_norm_",
    "clip_grads_with_norm_",
    "close",
    "get_total_norm",
    "init",
    "last_report",
    "observe",
    "verify_weights",
]
