"""The errors of the torch adapter.

UsageError
├── ModuleRefused     the module, or a parameter of it, cannot be synchronised
├── ParameterChanged  a parameter is not what the ranks agreed on at attach
├── GradientRefused   a gradient of a form that has no place in the arena
└── ModeNotAvailable  $GRADSYNC_MODE asks for a rung this release does not have
GradsyncError
├── LateGradient      a gradient came after its bucket had been launched
└── DeferredClipFailed  with defer=True: the step before failed after its clip had returned
"""

from __future__ import annotations

from typing import Any

from gradsync.errors import GradsyncError, UsageError

__all__ = [
    "DeferredClipFailed",
    "GradientRefused",
    "LateGradient",
    "ModeNotAvailable",
    "ModuleRefused",
    "ParameterChanged",
]


class _Named(UsageError):
    """`name` is the parameter or module at fault; the message says what was found and ends with the way out."""

    def __init__(self, name: str, found: str, hint: str) -> None:
        super().__init__(f"'{name}': {found}; {hint}")
        self.name = name
        self.found = found
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.found, self.hint)


class ModuleRefused(_Named):
    """The module, or a parameter of it, cannot be synchronised."""


class ParameterChanged(_Named):
    """A parameter is not what the ranks agreed on when the module was attached."""


class GradientRefused(_Named):
    """A gradient of a form (sparse, another dtype) that has no place in the arena."""


class ModeNotAvailable(UsageError):
    """$GRADSYNC_MODE asks for a rung of the ladder that this release does not have."""


class LateGradient(GradsyncError):
    """A gradient came after its bucket had been launched: what was reduced is not the whole gradient.

    The step cannot be saved, and every later call of the same object raises this again.
    """

    def __init__(self, name: str, step: int, count: int) -> None:
        super().__init__(
            f"step {step}: '{name}' got a gradient, lost it or had it changed, after its bucket had been launched with "
            f"{count}, as many as it ever had in a step; the step is lost. Call step() after the last backward of a "
            "step, change and clip gradients after finish(), not before, and attach again when the model begins to "
            "use a parameter otherwise"
        )
        self.name = name
        self.step = step
        self.count = count

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.step, self.count)


class DeferredClipFailed(GradsyncError):
    """With `defer=True`: the step before failed after its clip had returned, and its gradients became zeros.

    `__cause__` is why.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"step {step} failed after its clip had returned (defer=True): {reason}; its gradients became zeros, and "
            "the weights have what the optimizer did with zeros (momentum, weight decay), perhaps on this rank alone: "
            "go on from a checkpoint on all ranks"
        )
        self.step = step
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.reason)
