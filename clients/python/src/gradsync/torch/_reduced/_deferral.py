"""`defer=True`: a clip that returns before its coefficient is known, for which the GPU's stream waits (docs/adr/0033).

The trainer's thread enqueues; a thread of the step waits for the rows, asks the daemon and releases the stream. What
fails releases it with zeros, is logged at once, and is raised by the next call.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, NoReturn

import torch

import gradsync
from gradsync.errors import GradsyncError, UsageError

from .._errors import DeferredClipFailed
from .._statistics._arranged import Placed
from .._statistics._gate import Gate
from .._statistics._measurer import Measurer

__all__ = ["Defer", "Deferral", "check_defer", "check_deferred_call", "zeroes"]

Defer = bool | Literal["unmeasured"]
Ask = Callable[[float], gradsync.StepReport]  # with the seconds that the step may take

_MEASURED = frozenset({"cpu"})  # names of GPUs on which a stream's wait was measured, and the emulation of tests
_MARGIN_S = 10.0  # beyond the daemon's deadline: the client's own timer, and the way to the gate
_log = logging.getLogger("gradsync")


def check_defer(defer: Defer, mode: str, clip: gradsync.Clip | None, divergence: str, weights_every: int) -> None:
    """Raises UsageError where something else of `init` needs the host to know the result of a step."""
    if defer is False:
        return
    if defer is not True and defer != "unmeasured":
        raise UsageError(f"init(defer={defer!r}): give False, True or 'unmeasured'")
    if mode != "clip":
        _refuse(f"mode {mode} multiplies nothing", "leave defer out, or use mode clip")
    if divergence == "raise":
        _refuse("divergence='raise' raises before anything is multiplied", "give divergence='report'")
    if weights_every:
        _refuse(
            "weights are compared between a step's result and the optimizer",
            "give weights_every=0, and call verify_weights() before checkpoints",
        )
    for setting in ("nonfinite", "spike"):
        if clip is not None and getattr(clip, setting) == "raise":
            _refuse(
                f"Clip({setting}='raise') raises before the optimizer steps",
                f"give {setting}=" + ("'zero' or 'propagate'" if setting == "nonfinite" else "'clip'"),
            )


def check_deferred_call(name: str, given: bool, way_out: str) -> None:
    """Raises UsageError where something was given to a call that needs its result on the host."""
    if given:
        _refuse(f"{name} needs the result of the step at once", way_out)


def zeroes(report: gradsync.StepReport) -> bool:
    """Whether gradients become zeros, NaN among them."""
    return report.coefficient == 0.0 and any(group.action == "zero" for group in report.groups)


class Deferral:
    """The step that is under way, at most one. Calls belong to the trainer's thread."""

    def __init__(self, device: torch.device, defer: Defer) -> None:
        """Raises UsageError where nobody has measured the device, unless that is wanted."""
        self._device = device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        if defer != "unmeasured" and name not in _MEASURED:
            _refuse(f"that a stream may wait was not measured on {name}", "give defer='unmeasured' to try it, or False")
        self._gate: Gate | None = None
        self._step = 0
        self._found: Future[gradsync.StepReport] | None = None
        self._process = os.getpid()
        atexit.register(self._at_exit)

    def check(self, measurer: Measurer) -> None:
        """Raises UsageError where not all gradients are measured in one pass, or the device's streams cannot wait."""
        if not measurer.in_one_pass:
            _refuse(
                f"the kernels must measure all gradients of this rank, on one GPU; {measurer.measured_by} does",
                "see GRADSYNC_KERNELS, or give defer=False on this rank",
            )
        try:
            measurer.prepare_defer()
        except RuntimeError as error:
            _refuse(str(error), "give defer=False on this rank")

    def begin(self, placed: Placed, enqueue: Callable[[float], None], grads: gradsync.ReducedGrads, ask: Ask) -> None:
        """Enqueues the step and leaves the rest of it to a thread."""
        within = grads.patience_s
        gate = placed.passes.gate()
        enqueue(within + _MARGIN_S)
        self._gate, self._step, self._found = gate, grads.next_step, Future()
        given = (gate, self._step, self._found, lambda: ask(within))
        try:
            threading.Thread(target=_complete, args=given, name="gradsync-defer", daemon=True).start()
        except BaseException:
            gate.fail()
            self._found = None
            raise

    def settle(self) -> gradsync.StepReport | None:
        """Waits for the step that is under way; None where there is none, or it was asked for before.

        Raises:
            DeferredClipFailed: it failed, once.
        """
        found = self._found
        if found is None:
            return None
        self._release_where_the_device_is_lost()
        error = found.exception()  # which a Ctrl-C may leave, to be asked again
        self._found = self._gate = None  # a gate that goes later would wait for the next step's
        if error is not None:
            raise DeferredClipFailed(self._step, str(error)) from error
        return found.result()

    def close(self) -> None:
        """After `settle`: nothing is left to do at the interpreter's exit."""
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if self._found is not None and os.getpid() == self._process:  # a forked child has no thread of the step
            self._release_where_the_device_is_lost()
            self._found.exception()  # a failure was logged when it came

    def _release_where_the_device_is_lost(self) -> None:
        """Rows that a lost device owes never come."""
        if self._device.type != "cuda":
            return
        try:
            torch.cuda.current_stream(self._device).query()
        except RuntimeError:
            assert self._gate is not None
            self._gate.fail()


def _complete(
    gate: Gate, step: int, found: Future[gradsync.StepReport], ask: Callable[[], gradsync.StepReport]
) -> None:
    """From the rows to the release, on a thread of the step."""
    try:
        if not gate.await_rows():
            raise GradsyncError("the GPU did not come to the clip in time; see what its stream waits for")
        report = ask()
        if not gate.release(report.coefficient, zeroes(report), report.norm):
            raise GradsyncError(
                "its coefficient came after the stream had been released; see what held this process up"
            )
    except BaseException as error:
        gate.fail()
        _log.error(
            "step %d failed after its clip had returned (defer=True), its gradients become zeros: %s", step, error
        )
        found.set_exception(error)
    else:
        found.set_result(report)


def _refuse(why: str, way_out: str) -> NoReturn:
    raise UsageError(f"defer=True: {why}; {way_out}")
