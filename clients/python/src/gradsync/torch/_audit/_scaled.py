"""Finds clips of gradients that a loss scale still multiplies: the scaler divides them only after the clip.

A GradScaler says when it divides, not when a script ought to have asked. What was clipped since its optimizer's last
step, and is divided then for the first time, was clipped too early. Scripts that divide by themselves are not
concerned.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

__all__ = ["ScaledClips"]


class ScaledClips:
    """What one rank clipped, divided and stepped, in the order of its calls."""

    def __init__(self) -> None:
        self._clipped: set[int] = set()  # ids of parameters whose optimizer has not stepped since
        self._divided: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # before a clip, as it should be
        self._factors: dict[int, float] = {}  # of the parameters of the open step that were divided after their clip
        self._habit: weakref.WeakKeyDictionary[Optimizer, float] = weakref.WeakKeyDictionary()
        self._late: weakref.WeakKeyDictionary[Optimizer, GradScaler] = weakref.WeakKeyDictionary()

    def look(self, optimizers: Iterable[Optimizer]) -> None:
        """Called once, at the first clip, because what came before it was not told."""
        scalers = [one for one in gc.get_objects() if issubclass(type(one), GradScaler)]
        for optimizer in optimizers:
            if any(_has_divided(scaler, optimizer) for scaler in scalers):
                self._divided.add(optimizer)

    def seen(self, parameters: Iterable[torch.Tensor]) -> None:
        """These were clipped, or their norm was taken."""
        self._clipped |= set(map(id, parameters))

    def clips(self, parameters: Iterable[torch.Tensor]) -> None:
        """These are multiplied. Where the scaler has divided them, what came before was a norm for a log."""
        ids = set(map(id, parameters))
        for optimizer, scaler in list(self._late.items()):
            held = self._held_by(optimizer)
            if held & ids and _has_divided(scaler, optimizer):
                self._factors = {one: factor for one, factor in self._factors.items() if one not in held}
                self._habit.pop(optimizer, None)
                self._late.pop(optimizer, None)
                self._divided.add(optimizer)

    def divides(self, optimizer: Optimizer, factor: float, scaler: GradScaler | None = None) -> bool:
        """The scaler divides the gradients of this optimizer now. Returns whether these are of a new step."""
        early = self._held_by(optimizer) & self._clipped
        if not early:
            self._divided.add(optimizer)
            self._habit.pop(optimizer, None)
            return False
        if optimizer in self._divided:  # Nobody may divide twice, so the step was skipped, and another has begun.
            self._clipped -= early
            return True
        if factor != 1.0:
            self._factors |= dict.fromkeys(early, factor)
            self._habit[optimizer] = factor
            if scaler is not None:
                self._late[optimizer] = scaler
        return False

    def steps(self, optimizer: Optimizer) -> None:
        self._clipped -= self._held_by(optimizer)
        self._divided.discard(optimizer)

    def factor(self, parameters: Sequence[torch.Tensor]) -> float | None:
        """The scale that gradients had when they were clipped, if they had one.

        Another optimizer may have closed the step before this one's was divided; then it is as in the step before.
        """
        ids = set(map(id, parameters))
        found = {self._factors[one] for one in ids if one in self._factors}
        for optimizer, factor in self._habit.items():
            if optimizer not in self._divided and self._held_by(optimizer) & ids:
                found.add(factor)
        return max(found, default=None)

    def finish(self) -> None:
        """Another step begins."""
        self._factors = {}

    @staticmethod
    def _held_by(optimizer: Optimizer) -> set[int]:
        return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _has_divided(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Whether the gradients of this optimizer were divided, and it has not stepped since."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return state is not None and state["stage"] is OptState.UNSCALED
