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
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

import gradsync
from gradsync._rounding import NARROW
from gradsync._session._rank_session import SessionMoved
from gradsync._step._reduced import Answer, StepUnderway
from gradsync._step._report import Finding
from gradsync.errors import GradsyncError, RpcError
from gradsync.trackers._report_log import LogsReports, ReportLog

from .._dtensor import is_dtensor
from .._optimizer_steps import listeners
from .._statistics._measurer import rows_in
from .._unchanged_state import UnchangedState
from ._conditions import Conditions
from ._held_gradients import HeldGradients
from ._observation import Observation, Result

if TYPE_CHECKING:
    import os

    from torch.amp.grad_scaler import GradScaler

__all__ = ["Observer", "say_health"]

PATIENCE_S = 0.08  # leaves a margin below the documented 100 ms
_JOIN_S = 1.0
_STEPS_UNSEEN = 3  # steps of an optimizer without an observation, after which it is said
_MEET_EVERY = 8  # ranks that observed different steps go on together at a multiple of this
_NARROW = {torch.bfloat16, torch.float16}
_log = logging.getLogger("gradsync")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What this rank keeps of the step under way: a way to the framework's norm, how far rounding may have taken it,
    whether bits are compared, and the names of the tensors that were looked at, if not all were."""

    theirs: Callable[[], float | None]
    limit: float
    checked: bool
    names: frozenset[str] | None


def _warn(text: str) -> None:
    _log.warning("gradsync observe: %s", text)


class Observer(UnchangedState, LogsReports):
    """What `init` returns in mode `observe`. Calls belong to the thread that runs backward."""

    def __init__(
        self,
        declare: Callable[[Callable[[], None]], tuple[gradsync.ReducedGrads, Callable[[], None]]],
        tensors: Sequence[gradsync.Tensor],
        parameters: Sequence[nn.Parameter],
        norm_type: float,
        timeout: float,
        rank: int,
        *,
        say: Callable[[str], None] = _warn,
        note: Callable[[str], None] | None = None,
        told: Callable[[Result], None] | None = None,
        patience: float | None = None,
        log: ReportLog | None = None,
    ) -> None:
        """`declare` runs on the observer's thread, calls its argument once a daemon has answered, and returns how to
        leave. `say` takes what a user should read of steps, `note` what of the observation itself (the same by
        default), `told` the result of each step; `patience` is how many seconds a
        daemon that does not answer may cost, once."""
        self._declare = declare
        self._log = self._log if log is None else log
        self._held = HeldGradients(parameters, tensors)
        self._measurer = self._held.measurer(norm_type)
        self._norm_type = norm_type
        self._rounding = self._held.rounding()
        self._note, self._told = note or say, told
        self._conditions = Conditions(rank, lambda text: say(f"rank {rank}: {text}"))
        self._declared = threading.Event()  # set once the gradients are declared, or it is known that they will not be
        self._reachable = threading.Event()  # set once there is a connection, or it is known that there is no daemon
        self._leaving = False
        self._wanted = threading.Event()  # set when the observer's thread shall leave, or declare again
        self._most = PATIENCE_S if patience is None else patience
        self._patience = self._most
        self._number = 0  # the number of the next step
        self._resume_at = 0
        self._underway: StepUnderway | None = None
        self._asked: _Asked | None = None  # of the step under way
        self._checked = False
        self._names: frozenset[str] | None = None  # what was measured, if not all tensors were
        self._parts = False  # steps look at different tensors
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
        if self._reachable.wait(self._most):
            self._declared.wait(timeout)
        else:
            self._patience = 0.0

    @property
    def number(self) -> int:
        """The number of the newest step that was to be measured."""
        return self._number - 1

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

    def measure(self, only: Set[int] | None = None) -> bool:
        """Whether this step is observed; its rows are in the table then. `only` selects tensors by their index."""
        self._number += 1
        try:
            if self._ready() and self._number > self._resume_at:
                assert self._grads is not None
                gradients = self._held.gather()
                if only is not None and len(only) < len(gradients):
                    gradients = [one if index in only else None for index, one in enumerate(gradients)]
                self._look_at(only)
                self._checked = self._grads.check
                arranged = self._measurer.arrange(gradients, self._checked)
                self._measurer.measure(arranged, self._grads.stamp, self._table)
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
        if measured:
            narrow = isinstance(norm, torch.Tensor) and norm.dtype in _NARROW
            self.ask(lambda: theirs, narrow)

    def ask(self, theirs: Callable[[], float | None], narrow: bool) -> None:
        """Asks what all ranks found, after `measure` did. `theirs` is called when they have answered; `narrow` says
        that the framework's norm has 16 bits."""
        self._asked = _Asked(theirs, NARROW if narrow else self._rounding, self._checked, self._names)
        try:
            assert self._grads is not None
            self._grads.wrote_all()
            self._underway = self._grads.begin(self.number)
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
        """Does nothing: the observer itself chooses when to look."""

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
            self.wait(self._most)  # so that the daemon completes the last step
        self._conditions.close()
        self._ended = True
        listeners.remove(self)
        self._leave()
        self._thread.join(_JOIN_S if self._patience else self._most)
        self._log.close()

    # inside

    def _ready(self) -> bool:
        if self._ended:
            return False
        if self._declared.wait(self._patience) and self._collect(self._patience):
            self._patience = self._most
            return not self._ended
        if self._patience:
            self._patience = 0.0
            self._warn(f"no result of the step before after {self._most:g} s; steps are not observed until it comes")
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
            self._take(answer, underway.step)
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

    def _look_at(self, only: Set[int] | None) -> None:
        everything = only is None or len(only) == len(self._held.names)
        names = None if everything else frozenset(self._held.names[index] for index in only or ())
        self._parts = self._parts or (self._asked is not None and names != self._names)
        self._names = names

    def _take(self, answer: Answer, step: int) -> None:
        asked = self._asked
        assert asked is not None
        try:
            theirs = asked.theirs()
            self.last = last = Observation(answer.report, theirs, asked.names)

            def counts(kind: Finding) -> bool:
                if kind == "absent":  # tensors that were not looked at are absent too
                    return asked.names is None or bool(last.report.absent)
                return kind != "spike" or not self._parts  # norms of several parts in turn have no course

            seen = self._conditions.see(answer, step, theirs, asked.limit, asked.checked, lambda: last.report, counts)
            if self._log:
                self._log.log(step, lambda: last.report)
            if self._told is not None:
                self._told(Result(step, answer.findings()[0], theirs, asked.limit, seen))
        except Exception as error:
            self._warn(str(error))

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
            self._note(text)

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


def say_health(pushed: dict[str, Any]) -> None:
    """Logs an alert of the daemon that clipping is not healthy, or is again; it comes to rank 0."""
    if pushed["event"]["kind"] == "clip_health":
        _log.warning("gradsync observe: rank 0: %s", pushed["event"]["what"])


def _number(norm: torch.Tensor | float) -> float:
    if isinstance(norm, torch.Tensor):
        whole: Any = norm
        return float(whole.full_tensor() if is_dtensor(norm) else whole)
    return float(norm)
