"""Mode `observe`: measures beside the framework, never raises, changes no bit and does not hold training up.

The training thread measures its gradients, asks the daemon and goes on; it takes the answer before it measures the next
step, so no thread wakes up while that step computes. A dead or stopped daemon costs `PATIENCE_S` once, and nothing
after that. A thread of the observer joins the job at the beginning and after a restart of the daemon, and leaves it at
the end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

import gradsync
from gradsync._rounding import NARROW
from gradsync._step._reduced import StepUnderway
from gradsync._transport._calls import SessionMoved
from gradsync.errors import GradsyncError, RpcError

from .._dtensor import is_dtensor
from .._optimizer_steps import listeners
from .._statistics._measurer import rows_in
from .._unchanged_state import UnchangedState
from ._conditions import Conditions
from ._held_gradients import HeldGradients

if TYPE_CHECKING:
    import os

    from torch.amp.grad_scaler import GradScaler

__all__ = ["Observation", "Observer"]

PATIENCE_S = 0.08  # leaves a margin below the documented 100 ms
_JOIN_S = 1.0
_STEPS_UNSEEN = 3  # steps of an optimizer without an observation, after which it is said
_MEET_EVERY = 8  # ranks that observed different steps go on together at a multiple of this
_NARROW = {torch.bfloat16, torch.float16}
_log = logging.getLogger("gradsync")


class Observation:
    """One step: the report, and the framework's own norm where it was given."""

    def __init__(self, decode: Callable[[], gradsync.StepReport], theirs: float | None) -> None:
        self.theirs = theirs
        self._decode = decode
        self._report: gradsync.StepReport | None = None

    @property
    def report(self) -> gradsync.StepReport:
        """The report, which is decoded when it is read for the first time, because most are never read."""
        if self._report is None:
            self._report = replace(self._decode(), theirs=self.theirs)
        return self._report

    @property
    def relative_difference(self) -> float | None:
        """That of the report."""
        return self.report.relative_difference

    def __repr__(self) -> str:
        return f"Observation(report={self.report!r}, theirs={self.theirs!r})"


class Observer(UnchangedState):
    """What `init` returns in mode `observe`. Calls belong to the thread that runs backward."""

    def __init__(
        self,
        declare: Callable[[Callable[[], None]], tuple[gradsync.ReducedGrads, Callable[[], None]]],
        tensors: Sequence[gradsync.Tensor],
        parameters: Sequence[nn.Parameter],
        norm_type: float,
        timeout: float,
        rank: int,
    ) -> None:
        """`declare` runs on the observer's thread, calls its argument once a daemon has answered, and returns how to
        leave."""
        self._declare = declare
        self._held = HeldGradients(parameters, tensors)
        self._measurer = self._held.measurer(norm_type)
        self._norm_type = norm_type
        self._rounding = self._held.rounding()
        self._conditions = Conditions(rank, lambda text: _log.warning("gradsync observe: rank %d: %s", rank, text))
        self._declared = threading.Event()  # set once the gradients are declared, or it is known that they will not be
        self._reachable = threading.Event()  # set once there is a connection, or it is known that there is no daemon
        self._leaving = False
        self._wanted = threading.Event()  # set when the observer's thread shall leave, or declare again
        self._patience = PATIENCE_S
        self._number = 0  # the number of the next step
        self._resume_at = 0
        self._underway: StepUnderway | None = None
        # Of the step under way: the framework's norm, how far rounding may have taken it, whether bits are compared.
        self._theirs: float | None = None
        self._limit = 0.0
        self._checked = False
        self._grads: gradsync.ReducedGrads | None = None
        self._table = torch.empty(0, 8)
        self._said: set[str] = set()
        self._unseen = 0  # steps of optimizers before anything was observed
        self._ended = False
        self.skipped = 0  #: steps that were not observed
        self.last: Observation | None = None  #: the newest result
        self._thread = threading.Thread(target=self._run, name="gradsync-observer", daemon=True)
        self._thread.start()
        listeners.add(self)
        if self._reachable.wait(PATIENCE_S):
            self._declared.wait(timeout)
        else:
            self._patience = 0.0

    @property
    def report(self) -> gradsync.StepReport | None:
        """The report of the newest step that has a result; a step has one when the next step is observed."""
        try:
            return None if self.last is None else self.last.report
        except Exception as error:
            self._warn(str(error))
            return None

    def observe(self, norm: torch.Tensor | float | None = None) -> None:
        """Measures the gradients as they are, beside the framework's own `norm` of them.

        Collective like a clip: every rank calls it once per step, before anything multiplies the gradients.
        """
        self.finish(self.measure(), norm)

    def measure(self) -> bool:
        """Whether this step is observed; its rows are in the table then."""
        self._number += 1
        try:
            if self._ready() and self._number > self._resume_at:
                assert self._grads is not None
                arranged = self._measurer.arrange(self._held.gather())
                self._checked = self._grads.check
                self._measurer.measure(arranged, self._checked, self._grads.stamp, self._table)
                return True
        except Exception as error:
            self._warn(f"this rank's gradients cannot be observed: {error}")
        self.skipped += 1
        return False

    def finish(self, measured: bool, norm: torch.Tensor | float | None, norm_type: float | None = None) -> None:
        """Asks what all ranks found, where `measure` did, and keeps the framework's own norm beside it."""
        theirs = None
        try:
            if norm_type is not None and float(norm_type) != self._norm_type:
                self._warn(
                    f"the framework's norm has order {float(norm_type):g} and is not compared with ours of "
                    f"{self._norm_type:g}; give init(norm_type={float(norm_type):g})"
                )
                norm = None
            theirs = (
                None if norm is None else _number(norm)
            )  # A DTensor needs a collective, also on ranks that measured nothing.
        except Exception as error:
            self._warn(f"the framework's norm cannot be read: {error}")
        if not measured:
            return
        self._theirs = theirs
        self._limit = NARROW if isinstance(norm, torch.Tensor) and norm.dtype in _NARROW else self._rounding
        try:
            assert self._grads is not None
            self._grads.wrote_all()
            self._underway = self._grads.begin(self._number - 1)
        except SessionMoved as error:
            self._follow(error)
        except Exception as error:
            self._end(error)

    def before_step(self, optimizer: Optimizer) -> None:
        """Says once that a script whose optimizers step lets nothing be observed, as one with torch's own clip does."""
        if self._number == 0:
            self._unseen += self._held.holds_any(optimizer.param_groups)
            if self._unseen < _STEPS_UNSEEN:
                return
            self._warn(
                f"nothing was observed in {self._unseen} steps of {type(optimizer).__name__}; clip by "
                "gradsync.torch.clip_grad_norm_, or call gradsync.torch.observe(norm) before the clip"
            )
        listeners.remove(self)

    def before_unscale(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        """Does nothing: who observes chooses when."""

    def before_clip(self, gradients: Sequence[torch.Tensor]) -> None:
        """Does nothing: torch's own clips are not observed."""

    def wait(self, timeout: float = 10.0) -> Observation | None:
        """Waits for the result of the last step that was observed, at the end of a run for instance."""
        if self._declared.wait(timeout) and not self._ended:
            self._collect(timeout)
        return self.last

    def explain(self) -> dict[str, Any]:
        """The plan: how many ranks hold each tensor, over which ranks it is summed, and why."""
        with contextlib.suppress(GradsyncError):
            if self._grads is not None:
                return self._grads.explain()
        return {}

    def save_declaration(self, path: str | os.PathLike[str]) -> None:
        """Adds this rank's line to a file for `gradsyncd plan check`."""
        if self._grads is not None:
            self._grads.save_declaration(path)

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing, because no deadline waits for an observer."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Ends the observation, without waiting for a daemon that does not answer."""
        if not self._ended and self._patience:
            self.wait(PATIENCE_S)  # so that the daemon completes the last step
        self._conditions.close()
        self._ended = True
        listeners.remove(self)
        self._leave()
        self._thread.join(_JOIN_S if self._patience else PATIENCE_S)

    # inside

    def _ready(self) -> bool:
        if self._ended:
            return False
        if self._declared.wait(self._patience) and self._collect(self._patience):
            self._patience = PATIENCE_S
            return not self._ended
        if self._patience:
            self._patience = 0.0
            self._warn(f"no result of the step before after {PATIENCE_S:g} s; steps are not observed until it comes")
        return False

    def _collect(self, patience: float) -> bool:
        """Whether no step is under way any more."""
        underway = self._underway
        if underway is None:
            return True
        assert self._grads is not None
        try:
            answer = self._grads.collect(underway, patience)
            if answer is None:
                return False
            self.last = last = Observation(answer.report, self._theirs)
            try:
                self._conditions.see(
                    answer, underway.step, self._theirs, self._limit, self._checked, lambda: last.report
                )
            except Exception as error:
                self._warn(str(error))
        except RpcError as error:
            if error.attempt is None:
                self._end(error)
            else:
                self._warn(f"step {underway.step} has no result: {error}")  # the next one may
                if error.kind == "step_mismatch":
                    # One rank left a step out and is one step ahead; without this it would stay ahead.
                    self._resume_at = -(-self._number // _MEET_EVERY) * _MEET_EVERY
        except SessionMoved as error:
            self._underway = None
            self._follow(error)
            return False
        except Exception as error:
            self._end(error)
        self._underway = None
        return True

    def _end(self, error: Exception) -> None:
        self._ended = True
        self._leave()
        self._warn(f"ended: {error}")

    def _leave(self) -> None:
        self._leaving = True
        self._wanted.set()

    def _follow(self, error: SessionMoved) -> None:
        """Asks the observer's thread to declare to the new daemon; steps until then are not observed."""
        self._warn(f"steps are not observed until all ranks are back: {error}")
        self._declared.clear()
        self._wanted.set()

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
            self._declared.set()
            while self._wanted.wait() and not self._leaving:
                self._wanted.clear()
                self._grads.come_back()
                self._declared.set()
        except Exception as error:
            if not self._leaving:
                self._end(error)
        finally:
            self._reachable.set()
            self._declared.set()
            if leave is not None:
                with contextlib.suppress(Exception):
                    leave()


def _number(norm: torch.Tensor | float) -> float:
    if isinstance(norm, torch.Tensor):
        whole: Any = norm
        return float(whole.full_tensor() if is_dtensor(norm) else whole)
    return float(norm)
