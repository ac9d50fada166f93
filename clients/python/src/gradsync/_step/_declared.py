"""What every declaration has, whatever its data path: names, the halves of a step, and the fence between steps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradsync._policy_state import STATE_VERSION, check_state
from gradsync._session._rank_session import SessionMoved
from gradsync._tensor import Tensor
from gradsync.errors import CallTimeout, ClipRaised, ConnectionLost, GradientsDiverged, RpcError, UsageError

from ._report import StepReport, decode_fence, read_report
from ._step_request import UNSET, Unset, max_norm_param, timeout_param

if TYPE_CHECKING:
    from gradsync._job import Job

    from ._reconnect import Reconnect

__all__ = ["Declared", "some_of"]

_NAMED_AT_MOST = 20
_EXPORT = "policy.export"


class Declared(ABC):
    """The tensors of one rank as all ranks agreed on them. Calls that wait belong to one thread."""

    def __init__(self, job: Job, tensors: Sequence[Tensor], reply: dict[str, Any], reconnect: Reconnect) -> None:
        self._job = job
        self._reconnect = reconnect
        self.tensors: tuple[Tensor, ...] = tuple(tensors)
        self.plan_digest: str = reply["plan_digest"]
        self.raises_divergence = False  #: whether a step raises where copies of a gradient differ
        self.check: bool = bool(reply.get("check", True))  #: whether the daemon compares copies in the coming step
        self._index = {tensor.name: index for index, tensor in enumerate(self.tensors)}
        self._half_done: int | None = None  # the step between compute_norm and apply_clip
        self._first_half: dict[str, Any] | None = None  # the parameters of its compute_norm
        self._repeatable = False  # the last call failed before its attempt began: call it, or compute the step, again
        self._finished_once = False
        self._retired = False

    def index_of(self, name: str) -> int:
        """The index of a tensor.

        Raises:
            UsageError: no tensor of that name was declared.
        """
        try:
            return self._index[name]
        except KeyError:
            raise UsageError(f"no tensor {name!r} was declared; declared are {some_of(list(self._index))}") from None

    def apply_clip(self, max_norm: float | None | Unset = UNSET, timeout: float | None = None) -> StepReport:
        """The second half: clips by `max_norm`, or as declared, and ends the step.

        Raises:
            UsageError: `compute_norm` did not come first.
            ClipRaised: a clip group was declared to raise at this norm; the step is done.
            GradientsDiverged: copies differ, with `divergence="raise"`; the step is done.
            RpcError: the step failed on all ranks.
        """
        return self._apply("apply_clip()", max_norm_param(max_norm), timeout)

    def abandon(self, timeout: float | None = None) -> StepReport:
        """Ends the step that `compute_norm` left half done: nothing is multiplied, no policy acts or remembers.

        Raises:
            UsageError: `compute_norm` did not come first.
            RpcError: the step failed on all ranks.
        """
        return self._apply("abandon()", {"abandon": True}, timeout)

    def state_dict(self) -> dict[str, Any]:
        """What the clipping policies of the job remember, as of the last step: equal on all ranks, for a checkpoint.

        The values are opaque; the keys are always the same, as torch.distributed.checkpoint wants them. After a restart
        of the daemon this waits, as a step does, until all ranks are back.

        Raises:
            RpcError: the ranks did not come back in time, or one declared something else.
            ConnectionLost: with `step_lost`, the daemon was restarted in the middle of a step: compute it anew.
        """
        self._check_open()
        answer = self._step_call(_EXPORT, None, None)
        return {"version": STATE_VERSION, "policies": answer["state"]}

    def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None:
        """Goes on with such a state, between two steps; every rank has to load the same. From here on thresholds are
        those of the run that saved it, to the bit.

        Raises:
            UsageError: it is no such state, or a step is half done.
            InvalidParams: it is damaged, or of other clip groups or policies, which are named.
            RpcError: the ranks do not load the same, or not all did in time.
        """
        self._check_open()
        self._check_whole()
        policies = check_state(state)
        if self._begun():
            raise UsageError("load_state_dict() belongs between two steps; gradients of this one are ready already")
        if policies:
            params = {"state": policies} | timeout_param(timeout)
            wire = self._step_call("policy.import", params, timeout)
            epoch, attempt = decode_fence(wire)
            self._job.note_done(wire["epoch"], wire["attempt"])
            self._job.advance(epoch, attempt)

    def explain(self) -> dict[str, Any]:
        """The plan in words and numbers, per tensor, bucket and group: `plan.explain`, all pages together."""
        return self._job.client.explain(self._job.name)

    def retire(self) -> None:
        """Refuses further steps; views that the caller holds stay mapped."""
        self._retired = True

    # for data paths

    def _finish(self, step: int, params: dict[str, Any], timeout: float | None) -> StepReport:
        return self._end(step, self._step_call("step.finish", params, timeout))

    def _compute_norm(self, step: int, params: dict[str, Any], timeout: float | None) -> StepReport:
        wire = self._step_call("norm.compute", params, timeout)
        self._half_done, self._first_half = step, params
        return read_report(wire, self._name_of)

    def _apply(self, name: str, how: dict[str, Any], timeout: float | None) -> StepReport:
        self._check_open()
        step = self._half_done
        if step is None:
            raise UsageError(f"{name} needs the norm of this step; call compute_norm() first")
        params = {"step": step} | how | timeout_param(timeout)
        return self._end(step, self._step_call("clip.apply", params, timeout))

    @abstractmethod
    def _begun(self) -> bool:
        """Whether this rank has said something of the step."""

    def _check_whole(self) -> None:
        if self._repeatable:
            self._half_done = None
        if self._half_done is not None:
            raise UsageError("compute_norm() left this step half done already; complete it by apply_clip()")

    def _check_open(self) -> None:
        if self._retired:
            raise UsageError("these gradients are no longer declared (declared anew, or detached); use the new ones")

    def _reset(self) -> None:
        self._half_done = None
        self._repeatable = False

    def _step_call(self, method: str, params: dict[str, Any] | None, timeout: float | None) -> dict[str, Any]:
        try:
            return self._call_through(method, params, timeout)
        except RpcError as error:
            self._on_failure(error)
            raise
        except ConnectionLost as error:
            if error.step_lost:
                self._reset()
            raise

    def _call_through(self, method: str, params: dict[str, Any] | None, timeout: float | None) -> dict[str, Any]:
        """One call of a step, whatever daemons end in the meantime."""
        job = self._job
        first = not self._finished_once
        began = time.monotonic()
        left = timeout  # what the caller's limit for the whole call leaves
        while True:
            fenced = {} if params is None else {**job.fence(), **params}
            try:
                wire: dict[str, Any] = job.step_call(method, fenced, left, first=first)
                self.check = bool(wire.get("check_next", self.check))
                return wire
            except SessionMoved:
                result = self._reconnect.settle(job.stamp)
            if result is not None:
                if method != _EXPORT:
                    self.check = bool(result.get("check_next", self.check))
                    return result
                job.note_done(result["epoch"], result["attempt"])  # done by a call whose answer was not awaited
            try:
                self._come_back(_rest(timeout, began))
            except (RpcError, CallTimeout):
                self._repeatable = self._repeatable or method != _EXPORT
                raise
            self._repeatable = False
            ruled = self._reconnect.ruled()
            if ruled is not None:
                if method != _EXPORT:
                    return self._ruled_done(ruled | {"next_epoch": job.epoch, "next_attempt": job.attempt})
                job.note_done(ruled["epoch"], ruled["attempt"])
            if self._half_done is not None and method != "norm.compute":
                self._call_through("norm.compute", self._first_half, _rest(timeout, began))
            left = _rest(timeout, began)

    def _ruled_done(self, wire: dict[str, Any]) -> dict[str, Any]:
        """The result of a call that a daemon did not live to answer. Raises StepInDoubt where it is of no use here."""
        return wire

    def _come_back(self, timeout: float | None) -> None:
        reply = self._job.come_back(self._reconnect, timeout, stepped=self._finished_once)
        self.check = bool(reply.get("check", True))

    def _on_failure(self, error: RpcError) -> None:
        if error.attempt is not None:
            epoch = self._job.epoch
            self._job.advance(error.epoch, error.attempt)
            self.check = self.check or self._job.epoch != epoch  # as ranks that are new to this epoch do
            self._reset()

    def _end(self, step: int, wire: dict[str, Any]) -> StepReport:
        report = read_report(wire, self._name_of)
        self._on_end(step, wire)
        if report.action == "raise":
            raise ClipRaised(report)
        if self.raises_divergence and wire["divergence"]:
            raise GradientsDiverged(report)
        return report

    def _on_end(self, step: int, wire: dict[str, Any]) -> None:
        epoch, attempt = decode_fence(wire)
        self._job.note_done(wire["epoch"], wire["attempt"])
        self._job.advance(epoch, attempt, next_step=step + 1)
        self._finished_once = True
        self._reset()

    def _name_of(self, index: int) -> str:
        return self.tensors[index].name


def _rest(timeout: float | None, began: float) -> float | None:
    return None if timeout is None else max(0.0, began + timeout - time.monotonic())


def some_of(names: Sequence[str]) -> str:
    """The first of many names, for a message."""
    shown = ", ".join(repr(name) for name in names[:_NAMED_AT_MOST])
    left = len(names) - _NAMED_AT_MOST
    return f"{shown} and {left} more" if left > 0 else shown or "none"
