"""Everything this package raises.

    GradsyncError
    ├── ConnectionFailed        connect() did not reach a usable daemon; `reason` says why
    ├── ConnectionLost          the connection or the session behind it is gone
    ├── ProtocolError           the daemon sent something that this client does not understand
    ├── StepRaised              the step is done, and by its report every rank raises
    │   ├── ClipRaised          a clip group is declared to raise at this norm
    │   └── GradientsDiverged   gradients that must be equal differ between ranks, with divergence="raise"
    ├── CallTimeout             no answer came within the client's own timer (also a TimeoutError)
    ├── UsageError              this client refuses the call by itself (also a ValueError)
    │   └── AccumulationError   a tensor became ready more or less often than declared
    └── RpcError                an answer of the daemon; one subclass for each `kind`:
        ├── ParseError, InvalidRequest, MethodNotFound, InvalidParams, InternalError
        ├── NotInitialized, VersionMismatch, LocalOnly, Unauthorized, Draining, LimitExceeded
        ├── NotAttached, UnknownJob, RankInUse, JobMismatch, Superseded, RankLost
        ├── NoPeers, NodeRefused, NodeLost
        ├── UnknownBuffer, InsufficientMemory, BadToken, NoGpu, ImportRefused
        ├── InvalidDeclaration, UnsupportedPlacement, PlanMismatch, WeightsDiverged, DeclareTimeout
        ├── NotDeclared, NotReady, StepMismatch, StepTimeout, StaleEpoch, StaleAttempt, DuplicateReady, StepFailed
        ├── StepInDoubt
        ├── UnknownSubscription
        └── DoctorFailed

The fields of an `RpcError` come from the daemon's `data`; a field that the protocol leaves out is None or empty.
Every message ends with the next thing to try, that of an `RpcError` with the command that says more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ._step._report import StepReport

__all__ = [
    "AccumulationError",
    "BadToken",
    "CallTimeout",
    "ClipRaised",
    "ConnectionFailed",
    "ConnectionLost",
    "DeclareTimeout",
    "DoctorFailed",
    "Draining",
    "DuplicateReady",
    "GradientsDiverged",
    "GradsyncError",
    "ImportRefused",
    "InsufficientMemory",
    "InternalError",
    "InvalidDeclaration",
    "InvalidParams",
    "InvalidRequest",
    "JobMismatch",
    "LimitExceeded",
    "LocalOnly",
    "MethodNotFound",
    "NoGpu",
    "NoPeers",
    "NodeLost",
    "NodeRefused",
    "NotAttached",
    "NotDeclared",
    "NotInitialized",
    "NotReady",
    "ParseError",
    "PlanMismatch",
    "ProtocolError",
    "RankInUse",
    "RankLost",
    "RpcError",
    "StaleAttempt",
    "StaleEpoch",
    "StepFailed",
    "StepInDoubt",
    "StepMismatch",
    "StepRaised",
    "StepTimeout",
    "Superseded",
    "Unauthorized",
    "UnknownBuffer",
    "UnknownJob",
    "UnknownSubscription",
    "UnsupportedPlacement",
    "UsageError",
    "VersionMismatch",
    "WeightsDiverged",
]


_NAMED_AT_MOST = 3


class GradsyncError(Exception):
    """The base of all errors of this package."""


class ConnectionFailed(GradsyncError):
    """connect() did not reach a usable daemon.

    `reason` is one of not_found, not_a_socket, stale, unsafe, permission, refused, ending (or full), version,
    not_gradsync, timeout, spawn.
    """

    def __init__(self, reason: str, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, str(self), self.path)


class ConnectionLost(GradsyncError):
    """The connection to the daemon, or the session behind it, is gone.

    With `step_lost` only the gradients of the step in flight are lost, on every rank alike, and everything else goes
    on: compute the step again and finish it again.
    """

    def __init__(self, message: str, *, step_lost: bool = False) -> None:
        super().__init__(message)
        self.step_lost = step_lost


class ProtocolError(GradsyncError):
    """The daemon sent something that this client does not understand."""


class CallTimeout(GradsyncError, TimeoutError):
    """No answer came within the client's own timer, which is 5 s longer than the daemon's deadline.

    If the connection is lost meanwhile, a timeout that the caller gave limits the whole call.
    """

    def __init__(self, method: str, waited_s: float) -> None:
        super().__init__(
            f"no answer to {method} after {waited_s:.1f} s; the daemon should have answered by its own deadline: "
            "look at `python -m gradsync` and at the daemon's log"
        )
        self.method = method
        self.waited_s = waited_s

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.method, self.waited_s)


class StepRaised(GradsyncError):
    """By the `report` of a step, which is done, every rank raises before its optimizer steps."""

    report: StepReport

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.report,)


class ClipRaised(StepRaised):
    """A clip group is declared to raise at this norm (`nonfinite="raise"`, `spike="raise"`); every rank raises.

    The step is done and nothing was multiplied. `group` names the clip group whose norm decided this.
    """

    def __init__(self, report: StepReport) -> None:
        self.report, self.reason = report, report.reason
        # An older daemon does not say which group decided.
        found = [group.name for group in report.groups if group.spike or not math.isfinite(group.norm)]
        self.group = report.decided_by or (found[0] if found else "")
        named = ", ".join(map(str, report.nonfinite[:_NAMED_AT_MOST])) or "none is non-finite"
        where = f"step {report.step}, clip group '{self.group}'"
        super().__init__(f"{where}: {report.reason} (tensors: {named}); go on with the next step, or from a checkpoint")


class GradientsDiverged(StepRaised):
    """Gradients that must be equal differ between ranks, and `divergence="raise"` was asked for; every rank raises.

    `tensors` are their names, and `report.divergence` has the ranks of each.
    """

    def __init__(self, report: StepReport) -> None:
        self.report = report
        found = report.divergence
        self.tensors = tuple(one.tensor for one in found)
        more = f" and {len(found) - _NAMED_AT_MOST} more tensors" if len(found) > _NAMED_AT_MOST else ""
        super().__init__(
            f"step {report.step}: gradients that must be equal differ: "
            f"{', '.join(map(str, found[:_NAMED_AT_MOST]))}{more}; "
            "see what makes those ranks differ, and go on from a checkpoint with equal weights"
        )


class UsageError(GradsyncError, ValueError):
    """This client refuses the call by itself; nothing was sent."""


class AccumulationError(UsageError):
    """A tensor became ready more or less often than declared; the call that raised changed nothing."""

    def __init__(self, message: str, tensor: str = "") -> None:
        super().__init__(message)
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.tensor)


class RpcError(GradsyncError):
    """The daemon answered with an error; with `code` 0 the client found an error of the same kind by itself."""

    KIND: ClassVar[str] = ""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.message = message
        self.data: dict[str, Any] = dict(data or {})
        self.kind = str(self.data.get("kind", self.KIND))
        self.retryable = bool(self.data.get("retryable", False))
        self.hint = _with_page(str(self.data.get("hint") or ""), self.KIND)
        self.path: str | None = self.data.get("path")
        self.job: str | None = self.data.get("job")
        self.tensor: str | None = self.data.get("tensor")
        self.node: str | None = self.data.get("node")
        self.ranks: tuple[int, ...] = tuple(self.data.get("ranks") or ())
        self.tensors: tuple[str, ...] = tuple(self.data.get("tensors") or ())
        self.rank = _optional_int(self.data.get("rank"))
        self.step = _optional_int(self.data.get("step"))
        self.bucket = _optional_int(self.data.get("bucket"))
        self.epoch = _optional_int(self.data.get("epoch"))
        self.attempt = _optional_int(self.data.get("attempt"))
        self.waited_s: float | None = self.data.get("waited_s")
        where = f"{self.path}: " if self.path and self.path not in message else ""
        on = f" (node '{self.node}')" if self.node and f"'{self.node}'" not in message else ""
        said = f"{where}{message}{on}"
        super().__init__(f"{said}; {self.hint}" if self.hint else said)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.data)


def _with_page(hint: str, kind: str) -> str:
    """With the command that prints the page of the kind: the daemon's hints have it, those of this client get it."""
    page = f" (gradsyncd explain {kind})"
    return f"{hint}{page}" if hint and kind and not hint.endswith(page) else hint


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


class ParseError(RpcError):
    """The daemon could not read the text as JSON within its limits."""

    KIND = "parse_error"


class InvalidRequest(RpcError):
    """The text is JSON, but not a request that the daemon accepts."""

    KIND = "invalid_request"


class MethodNotFound(RpcError):
    """The daemon has no such method."""

    KIND = "method_not_found"


class InvalidParams(RpcError):
    """A field, named by `path`, is missing, unknown, of the wrong type or out of range."""

    KIND = "invalid_params"


class InternalError(RpcError):
    """The daemon has a defect."""

    KIND = "internal_error"


class NotInitialized(RpcError):
    """session.initialize has to come first."""

    KIND = "not_initialized"


class VersionMismatch(RpcError):
    """Client and daemon speak different protocol versions."""

    KIND = "version_mismatch"


class LocalOnly(RpcError):
    """The method needs a WebSocket on the unix socket."""

    KIND = "local_only"


class Unauthorized(RpcError):
    """The uid is not allowed, or the token is missing or wrong."""

    KIND = "unauthorized"


class Draining(RpcError):
    """The daemon is shutting down and accepts no new work."""

    KIND = "draining"


class LimitExceeded(RpcError):
    """A quota of the daemon is used up; the message names it and its value."""

    KIND = "limit_exceeded"


class NotAttached(RpcError):
    """This connection has no rank of a job."""

    KIND = "not_attached"


class UnknownJob(RpcError):
    """No job of that name is visible to this user."""

    KIND = "unknown_job"


class RankInUse(RpcError):
    """Another live process already holds this rank."""

    KIND = "rank_in_use"


class JobMismatch(RpcError):
    """World size or meshes differ from those of ranks already attached."""

    KIND = "job_mismatch"


class Superseded(RpcError):
    """A later attach took this rank over."""

    KIND = "superseded"


class RankLost(RpcError):
    """A rank of the job, named in `ranks`, died or left; the gradients of this step are lost."""

    KIND = "rank_lost"


class NoPeers(RpcError):
    """The job has ranks on other nodes, and this daemon is not set up for that."""

    KIND = "no_peers"


class NodeRefused(RpcError):
    """A node may not take part; the message has both addresses."""

    KIND = "node_refused"


class NodeLost(RpcError):
    """A node of the job, named in `node`, or the link to it, is gone; the gradients of this step are lost."""

    KIND = "node_lost"


class UnknownBuffer(RpcError):
    """This session has no such buffer."""

    KIND = "unknown_buffer"


class InsufficientMemory(RpcError):
    """The machine or its cgroup cannot give that much memory."""

    KIND = "insufficient_memory"


class BadToken(RpcError):
    """The token for the descriptor is unknown, used, expired or of another process."""

    KIND = "bad_token"


class NoGpu(RpcError):
    """The daemon has no worker for this GPU, and no way to start one; memory of CPUs is served."""

    KIND = "no_gpu"


class ImportRefused(RpcError):
    """Memory of a GPU could not be mapped by its worker; the message has the result of CUDA."""

    KIND = "import_refused"


class InvalidDeclaration(RpcError):
    """A tensor's shape, placement or options contradict themselves or its mesh."""

    KIND = "invalid_declaration"


class UnsupportedPlacement(RpcError):
    """The placement is valid, but this data path does not implement it."""

    KIND = "unsupported_placement"


class PlanMismatch(RpcError):
    """Ranks declared different things; the message names the first difference."""

    KIND = "plan_mismatch"


class WeightsDiverged(RpcError):
    """Weights declared as replicated differ between ranks."""

    KIND = "weights_diverged"


class DeclareTimeout(RpcError):
    """Not all ranks declared in time; those in `ranks` are missing."""

    KIND = "declare_timeout"


class NotDeclared(RpcError):
    """A step call came before a committed declaration."""

    KIND = "not_declared"


class NotReady(RpcError):
    """finish() came while some tensors, named in `tensors`, were neither ready nor unused."""

    KIND = "not_ready"


class StepMismatch(RpcError):
    """Ranks disagree on the step, the scale, max_norm or the call."""

    KIND = "step_mismatch"


class StepTimeout(RpcError):
    """The deadline passed; those in `ranks` and `tensors` were missing."""

    KIND = "step_timeout"


class StaleEpoch(RpcError):
    """The message belongs to another epoch; `epoch` and `attempt` are the ones to use."""

    KIND = "stale_epoch"


class StaleAttempt(RpcError):
    """The message belongs to another attempt; `attempt` is the one to use."""

    KIND = "stale_attempt"


class DuplicateReady(RpcError):
    """A bucket was reported ready twice in one attempt."""

    KIND = "duplicate_ready"


class StepFailed(RpcError):
    """The daemon failed while it worked on the step; the gradients of this step are lost."""

    KIND = "step_failed"


class StepInDoubt(RpcError):
    """Nobody can say whether the step was done, because the node that knew is gone: go on from a checkpoint."""

    KIND = "step_in_doubt"


class UnknownSubscription(RpcError):
    """This connection has no such subscription."""

    KIND = "unknown_subscription"


class DoctorFailed(RpcError):
    """The daemon could not have its node examined: the process for it did not start, hung, or found nothing."""

    KIND = "doctor_failed"
