"""A step under a `torch.amp.GradScaler`: the daemon divides by its scale, and the scaler learns what was found.

A scaler keeps for each optimizer whether its gradients are scaled, and where `unscale_` found something that is not
finite; its `step` and `update` go by that. Here the same is left behind as by `unscale_`, agreed by all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from gradsync import StepReport
from gradsync.errors import UsageError

__all__ = ["LossScale", "check_scaler", "loss_scale", "report_of_scaler", "unscaled_by_caller"]

_OURS = "gradsync"  # our key beside torch's own in the state of an optimizer, which update() drops


class LossScale:
    """The scaler and the optimizers of one step. `factor` is what the gradients have been multiplied by."""

    def __init__(self, scaler: GradScaler, optimizers: Sequence[Optimizer], factor: float) -> None:
        self._scaler = scaler
        self._optimizers = optimizers
        self.factor = factor

    def settle(self, report: StepReport) -> None:
        """Tells the scaler what became of the step."""
        spike = _is_skipped_spike(report)
        if spike:
            self._take_back()
        for optimizer in self._optimizers:
            self._record(optimizer, OptState.UNSCALED, _not_finite(report), "skipped" if spike else "done")

    def settle_raised(self) -> None:
        """After a report that raises, with finite gradients: the next step may begin, with or without an update()."""
        for optimizer in self._optimizers:
            self._record(optimizer, OptState.READY, False, "raised")

    def agree(self, report: StepReport) -> None:
        """After `unscale_` on each rank: all ranks adopt what one rank found, also those without gradients."""
        for optimizer in self._optimizers:
            found = self._scaler._found_inf_per_device(optimizer)
            if _not_finite(report) or not found:
                self._record(optimizer, OptState.UNSCALED, _not_finite(report), "done")

    def step(self, report: StepReport) -> None:
        """Steps the optimizers through the scaler, which skips where gradients are not finite."""
        for optimizer in self._optimizers:
            if _is_skipped_spike(report):
                self._scaler._per_optimizer_states[id(optimizer)]["stage"] = OptState.STEPPED
            else:
                self._scaler.step(optimizer)

    def _record(self, optimizer: Optimizer, stage: OptState, found: bool, outcome: str) -> None:
        scale = self._scaler._get_scale_async()
        assert scale is not None  # the scaler was asked for its factor, or has unscaled
        # A tensor for each optimizer: update() adds the others to the first, in place.
        found_inf = torch.full((), float(found), dtype=torch.float32, device=scale.device)
        self._scaler._per_optimizer_states[id(optimizer)] |= {
            "stage": stage,
            "found_inf_per_device": {found_inf.device: found_inf},
            _OURS: outcome,
        }

    def _take_back(self) -> None:
        """update() will count this step towards the growth of the scale, which a spike says nothing about. Once: it
        counts one for all optimizers of an iteration."""
        tracker = self._scaler._growth_tracker
        if tracker is not None and all(
            state.get(_OURS) != "skipped" for state in self._scaler._per_optimizer_states.values()
        ):
            tracker.sub_(1)


def _not_finite(report: StepReport) -> bool:
    """Finite gradients may have a norm that is not finite; the daemon skips that step as well."""
    return report.found_inf or not math.isfinite(report.norm)


def _is_skipped_spike(report: StepReport) -> bool:
    return report.skipped and not _not_finite(report)


def loss_scale(
    scaler: Any, scale: float | None, optimizers: Optimizer | Sequence[Optimizer] | None
) -> LossScale | None:
    """The scaler and optimizers of a step; None without a scaler, or if it is not enabled. It changes nothing.

    Raises:
        UsageError: `scaler` is not a GradScaler or not at the beginning of a step, `scale` is given too, or no
            optimizers are given.
    """
    check_scaler(scaler, scale)
    if scaler is None or not scaler.is_enabled():
        return None
    stepped = _stepped(optimizers)
    for number, optimizer in enumerate(stepped):
        _check_ready(scaler, optimizer, number)
    return LossScale(scaler, stepped, _factor_of(scaler))


def unscaled_by_caller(scaler: Any, optimizers: Optimizer | Sequence[Optimizer] | None) -> LossScale | None:
    """The same for mode `clip`, where the caller has called `scaler.unscale_` as in torch's recipe.

    Raises:
        UsageError: `scaler` is not a GradScaler, no optimizers are given, or one was not unscaled in this iteration.
    """
    check_scaler(scaler, None)
    if scaler is None or not scaler.is_enabled():
        return None
    stepped = _stepped(optimizers)
    for number, optimizer in enumerate(stepped):
        state = scaler._per_optimizer_states.get(id(optimizer))
        if state is None or state["stage"] is not OptState.UNSCALED:
            raise UsageError(
                f"optimizers[{number}] ({type(optimizer).__name__}): its gradients still have the scale; call "
                "scaler.unscale_() with it after the backward and before the norm"
            )
    return LossScale(scaler, stepped, 1.0)


def _stepped(optimizers: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    stepped = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())
    if not stepped:
        raise UsageError(f"optimizers={optimizers!r} with a scaler: give those that scaler.step() will be called with")
    for number, optimizer in enumerate(stepped):
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"optimizers[{number}]={optimizer!r}: give a torch.optim.Optimizer")
        if any(optimizer is other for other in stepped[:number]):
            raise UsageError(f"optimizers[{number}] is there twice; a scaler steps an optimizer once between updates")
    return stepped


def check_scaler(scaler: object, scale: float | None) -> None:
    """Raises UsageError if `scaler` is not a GradScaler, or if `scale` is given as well."""
    if scaler is None:
        return
    if not isinstance(scaler, GradScaler):
        raise UsageError(
            f"scaler={scaler!r}: give a torch.amp.GradScaler, or a factor of your own as scale= without a scaler"
        )
    if scale is not None:
        raise UsageError(f"scale={scale!r} beside scaler=: the scaler has a scale of its own; give one of the two")


def report_of_scaler(report: StepReport, scaler: GradScaler, optimizers: Sequence[Optimizer]) -> StepReport:
    """The report of a step that torch's scaler took by itself, with what it found."""
    found = [
        any(bool(inf) for inf in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())
        for optimizer in optimizers
    ]
    if not any(found):
        return report
    skipped = all(found)
    reason = f"{report.reason}; the scaler skipped {sum(found)} of {len(found)} optimizers: non-finite gradients"
    return replace(report, found_inf=True, skipped=skipped, action="skip" if skipped else "step", reason=reason)


def _check_ready(scaler: GradScaler, optimizer: Optimizer, number: int) -> None:
    state = scaler._per_optimizer_states.get(id(optimizer))  # reading it by [] would create an entry
    if state is None or state["stage"] is OptState.READY:
        return
    name = f"optimizers[{number}] ({type(optimizer).__name__})"
    if state["stage"] is OptState.STEPPED or _OURS in state:
        raise UsageError(f"{name} had its step already: scaler.update() was forgotten after it; call it once a step")
    raise UsageError(
        f"{name}: double unscale: scaler.unscale_() has divided its gradients, and this step would do it again; leave "
        "unscale_() out, gradsync unscales, measures and clips in one pass"
    )


def _factor_of(scaler: GradScaler) -> float:
    if scaler._get_scale_async() is None:
        raise UsageError(
            "scaler= has scaled nothing yet, so gradients are not multiplied by its scale; call "
            "scaler.scale(loss).backward()"
        )
    factor = float(scaler.get_scale())
    if not (factor > 0 and math.isfinite(factor)):
        raise UsageError(
            f"scaler.get_scale() is {factor!r}, and gradients cannot be divided by it: every step had gradients that "
            "are not finite; look for what makes them (report.nonfinite), and begin with a new scaler"
        )
    return factor
