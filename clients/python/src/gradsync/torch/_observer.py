"""Mode `observe`: a second opinion that never raises, never changes a bit and never holds training up.

The training thread measures its gradients, hands the rows to a thread of the observer and goes on; that thread speaks
with the daemon while the next step computes. Before a step is measured, the result of the step before should be there:
for a dead or stopped daemon this costs `PATIENCE_S` once, and nothing after that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import gradsync
from gradsync.errors import GradsyncError, RpcError

from ._held_gradients import HeldGradients
from ._placed import is_dtensor
from ._statistics import rows_in

if TYPE_CHECKING:
    import os

__all__ = ["Observation", "Observer"]

PATIENCE_S = 0.08  # with what the machine adds, below the 100 ms that are promised
_JOIN_S = 1.0
_log = logging.getLogger("gradsync")


@dataclass(frozen=True, slots=True)
class Observation:
    """One step: the report, and the framework's own norm where it was given."""

    report: gradsync.StepReport
    theirs: float | None

    @property
    def relative_difference(self) -> float | None:
        """Of the framework's norm from ours; None where either is missing or not finite."""
        ours = self.report.norm
        if self.theirs is None or not math.isfinite(self.theirs) or not math.isfinite(ours) or ours == 0:
            return None
        return self.theirs / ours - 1


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    theirs: float | None


class Observer:
    """What `init` returns in mode `observe`. Calls belong to the thread that runs backward."""

    def __init__(
        self,
        declare: Callable[[Callable[[], None]], tuple[gradsync.ReducedGrads, Callable[[], None]]],
        tensors: Sequence[gradsync.Tensor],
        parameters: Sequence[nn.Parameter],
        norm_type: float,
        timeout: float,
        log: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """`declare` runs on the observer's thread, calls its argument once a daemon has answered, and returns how to
        leave."""
        self._declare = declare
        self._held = HeldGradients(parameters, tensors)
        self._measurer = self._held.measurer(norm_type)
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._idle = threading.Event()  # the thread waits for the next step
        self._reachable = threading.Event()  # connected, or it is known that there is no daemon
        self._patience = PATIENCE_S
        self._number = 0
        self._log_step = log
        self._grads: gradsync.ReducedGrads | None = None
        self._table: torch.Tensor | None = None  # this thread's while the observer's is idle
        self._said: set[str] = set()
        self._ended = False
        self._closing = False
        self.skipped = 0  #: steps that were not observed
        self.last: Observation | None = None  #: the newest result
        self._thread = threading.Thread(target=self._run, name="gradsync-observer", daemon=True)
        self._thread.start()
        if self._reachable.wait(PATIENCE_S):
            self._idle.wait(timeout)
        else:
            self._patience = 0.0

    @property
    def report(self) -> gradsync.StepReport | None:
        """Of the newest step that has a result: that of a step is there when the next is observed."""
        return None if self.last is None else self.last.report

    def observe(self, norm: torch.Tensor | float | None = None) -> None:
        """Measures the gradients as they are, beside the framework's own `norm` of them.

        Collective like a clip: every rank calls it once per step, before anything multiplies the gradients.
        """
        self.finish(self.measure(), norm)

    def measure(self) -> bool:
        """Whether this step is observed; its rows are in the table then."""
        self._number += 1
        try:
            if self._ready():
                assert self._grads is not None
                assert self._table is not None
                arranged = self._measurer.arrange(self._held.gather())
                self._measurer.measure(arranged, self._grads.check, self._grads.stamp, self._table)
                return True
        except Exception as error:
            self._warn(f"this rank's gradients cannot be observed: {error}")
        self.skipped += 1
        return False

    def finish(self, measured: bool, norm: torch.Tensor | float | None) -> None:
        """Hands over what `measure` found, where it did, beside the framework's own norm."""
        try:
            theirs = None if norm is None else _number(norm)
        except Exception as error:
            self._warn(f"the framework's norm cannot be read: {error}")
            theirs = None
        if measured:
            self._idle.clear()
            self._steps.put(_Step(self._number - 1, theirs))

    def wait(self, timeout: float = 10.0) -> Observation | None:
        """The result of the last step that was observed, at the end of a run for instance."""
        self._idle.wait(timeout)
        return self.last

    def explain(self) -> dict[str, Any]:
        """The plan: how often every tensor is held, over which ranks it is summed, and why."""
        with contextlib.suppress(GradsyncError):
            if self._grads is not None:
                return self._grads.explain()
        return {}

    def save_declaration(self, path: str | os.PathLike[str]) -> None:
        """Adds this rank's line to a file for `gradsyncd plan check`."""
        if self._grads is not None:
            self._grads.save_declaration(path)

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Nothing waits for an observer."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Ends the observation; a daemon that does not answer is not waited for."""
        self._closing = True
        if not self._ended:
            self._steps.put(None)
            self._thread.join(_JOIN_S if self._patience else PATIENCE_S)

    # inside

    def _ready(self) -> bool:
        if self._ended or (self._patience == 0.0 and not self._idle.is_set()):
            return False
        if self._idle.wait(self._patience):
            self._patience = PATIENCE_S
            return self._grads is not None and not self._ended
        self._patience = 0.0
        self._warn(f"no result of the step before after {PATIENCE_S:g} s; steps are not observed until it comes")
        return False

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("gradsync observe: %s", text)

    # the observer's thread

    def _run(self) -> None:
        leave: Callable[[], None] | None = None
        try:
            self._grads, leave = self._declare(self._reachable.set)
            self._table = rows_in(self._grads.table_memoryview())
            self._idle.set()
            while (step := self._steps.get()) is not None:
                self._send(self._grads, step)
                self._idle.set()
        except Exception as error:
            if not self._closing:
                self._warn(f"ended: {error}")
        finally:
            self._ended = True
            self._reachable.set()
            self._idle.set()
            if leave is not None:
                with contextlib.suppress(Exception):
                    leave()

    def _send(self, grads: gradsync.ReducedGrads, step: _Step) -> None:
        grads.wrote_all()
        try:
            report = grads.finish(step=step.number)
        except RpcError as error:
            if error.attempt is None:
                raise
            self._warn(f"step {step.number} has no result: {error}")  # the next one may
            return
        self.last = Observation(report, step.theirs)
        if self._log_step is not None:
            self._log_step(step.number, _values(self.last))


def _number(norm: torch.Tensor | float) -> float:
    if isinstance(norm, torch.Tensor):
        whole: Any = norm
        return float(whole.full_tensor() if is_dtensor(norm) else whole)
    return float(norm)


def _values(seen: Observation) -> dict[str, float]:
    values = {"grad_norm": seen.report.norm}
    if seen.theirs is not None:
        values["grad_norm_framework"] = seen.theirs
    return values
