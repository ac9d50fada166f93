"""Gradients of a torch module through the sidecar: two lines in a training loop.

gs = gradsync.torch.attach(model, clip=gradsync.Clip(max_norm=1.0))
loss.backward(); report = gs.step(optimizer)
"""

from ._attach import attach
from ._errors import GradientRefused, LateGradient, ModeNotAvailable, ModuleRefused, ParameterChanged
from ._gradsync import GradSync
from ._off import OffSync
from ._recorder import Counters

__all__ = [
    "Counters",
    "GradSync",
    "GradientRefused",
    "LateGradient",
    "ModeNotAvailable",
    "ModuleRefused",
    "OffSync",
    "ParameterChanged",
    "attach",
]
