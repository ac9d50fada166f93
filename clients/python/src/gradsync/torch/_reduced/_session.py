"""Measures one rank's gradients that its framework reduced, and multiplies them by what the daemon answers.

Each step takes the gradients where they are at that moment, because frameworks make new ones. The plan covers all
parameters, so a gradient that is None on a rank changes no call: its row says that it is absent.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

import gradsync
from gradsync.errors import GradsyncError, StepRaised, UsageError
from gradsync.trackers._report_log import LogsReports, ReportLog

from .._dtensor import local_tensor
from .._loss_scale import unscaled_by_caller
from .._statistics._arranged import Arranged
from .._statistics._fingerprints import FINGERPRINT
from .._statistics._measurer import rows_in
from .._weights import WeightWatch
from ._deferral import Defer, Deferral, check_deferred_call, zeroes
from ._held_gradients import HeldGradients

if TYPE_CHECKING:
    import os

    from torch.amp.grad_scaler import GradScaler
    from torch.optim import Optimizer


__all__ = ["Session"]


class Session(LogsReports):
    """What `init` returns in mode `clip`. Calls belong to the thread that runs backward."""

    def __init__(
        self,
        job: gradsync.Job,
        tensors: Sequence[gradsync.Tensor],
        parameters: Sequence[nn.Parameter],
        norm_type: float,
        clip: gradsync.Clip,
        owned_client: gradsync.Client | None,
        timeout: float | None,
        *,
        divergence: Literal["report", "raise"] = "report",
        weights_every: int = 0,
        defer: Defer = False,
        log: ReportLog | None = None,
    ) -> None:
        self._job = job
        self._log = self._log if log is None else log
        self._clip = replace(clip, zero_rule="zero")  # as torch does where max_norm is 0
        self._tensors = list(tensors)
        self._divergence = divergence
        self._weights = WeightWatch(job, self._tensors, parameters, weights_every, divergence == "raise")
        self._owned_client = owned_client
        self._held = HeldGradients(parameters, tensors)
        self._mesh = self._held.common_mesh()
        self._norm_spec: Any = None  # the spec of the norm as a DTensor
        self._half_done: gradsync.StepReport | None = None
        self._report: gradsync.StepReport | None = None
        self._deferral = Deferral(self._held.device, defer) if defer else None
        self._declare(norm_type, timeout)

    @property
    def report(self) -> gradsync.StepReport | None:
        """The report of the last step; with `defer` this waits for it.

        Raises:
            DeferredClipFailed: with `defer`, the step failed.
        """
        self._settle()
        return self._report

    # torch's functions

    def clip_grad_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        *,
        scaler: GradScaler | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        plain: bool = False,
    ) -> torch.Tensor:
        """As `torch.nn.utils.clip_grad_norm_`, over all ranks of the job. With `plain` the norm is not a DTensor."""
        if self._deferral is not None:
            self._settle()
            scaled = scaler is not None or optimizers is not None
            check_deferred_call("a GradScaler", scaled, "use bfloat16 without a scaler, or defer=False")
            check_deferred_call("error_if_nonfinite=True", error_if_nonfinite, "leave it out, or use defer=False")
            self._held.check_parameters(parameters)
            return self._clip_later(self._deferral, float(max_norm), float(norm_type), plain)
        held = unscaled_by_caller(scaler, optimizers)
        self._held.check_parameters(parameters)
        arranged = self._prepare(norm_type)
        report = self._end(self._grads.finish, max_norm=float(max_norm), scaled=None if held is None else True)
        if held is not None:
            held.agree(report)
        norm = self._as_tensor(report.norm, plain)
        if error_if_nonfinite and not math.isfinite(report.norm):
            raise _nonfinite(norm_type)
        _obey(arranged, report)
        return norm

    def get_total_norm(
        self,
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        """As `torch.nn.utils.get_total_norm` of all gradients that this rank holds, over all ranks of the job."""
        self._refuse_deferred("get_total_norm()")
        self._held.check_gradients([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
        self._prepare(norm_type)
        self._half_done = self._report = report = self._grads.compute_norm()
        if self._divergence == "raise" and report.divergence:
            self._half_done = None
            self._end(self._grads.abandon)  # which raises
        if error_if_nonfinite and not math.isfinite(report.norm):
            raise _nonfinite(norm_type)
        return self._as_tensor(report.norm, plain=False)

    def clip_grads_with_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        total_norm: torch.Tensor,
        foreach: bool | None = None,
    ) -> None:
        """As `torch.nn.utils.clip_grads_with_norm_`, with the norm that `get_total_norm` returned in this step."""
        self._refuse_deferred("clip_grads_with_norm_()")
        self._held.check_parameters(parameters)
        measured = None if self._half_done is None else self._as_tensor(self._half_done.norm, plain=True)
        given = local_tensor(total_norm).to("cpu") if isinstance(total_norm, torch.Tensor) else None
        if (
            measured is None
            or given is None
            or not torch.equal(torch.nan_to_num(measured.cpu()), torch.nan_to_num(given))
        ):
            raise UsageError(
                f"clip_grads_with_norm_(total_norm={total_norm!r}) is not what get_total_norm returned in this step; "
                "call that first, with the gradients of all parameters of init()"
            )
        self._half_done = None
        report = self._end(self._grads.apply_clip, max_norm=float(max_norm))
        _obey(self._measurer.arrange(self._held.gather()), report)

    # around the steps

    def state_dict(self) -> dict[str, Any]:
        """The state of the clipping policies, for a checkpoint; it is equal on all ranks, so any rank may save it.

        The object is a `Stateful` of torch.distributed.checkpoint.
        """
        self._settle()
        return self._grads.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state; every rank loads the same one, between two steps.

        Raises:
            UsageError: `state` is not the state of clipping policies.
            InvalidParams: the state belongs to other clip groups or policies, or is damaged.
        """
        self._settle()
        self._grads.load_state_dict(state)

    def explain(self) -> dict[str, Any]:
        """The plan: how many ranks hold each tensor, over which ranks it is summed, and why."""
        self._settle()
        return self._grads.explain()

    def save_declaration(self, path: str | os.PathLike[str]) -> None:
        """Adds this rank's line to a file for `gradsyncd plan check`."""
        self._grads.save_declaration(path)

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """While this is open (evaluation, a checkpoint) no deadline that waits for this rank runs out."""
        self._refuse_deferred("pause()")
        return self._job.pause()

    def verify_weights(self, timeout: float | None = None) -> None:
        """`gradsync.torch.verify_weights`."""
        self._settle()
        self._weights.verify(timeout)

    def close(self) -> None:
        """Leaves the job. Doing it again changes nothing.

        Raises:
            DeferredClipFailed: with `defer`, the last step failed; the job is left all the same.
        """
        try:
            self._settle()
        finally:
            if self._deferral is not None:
                self._deferral.close()
            self._weights.close()
            with contextlib.suppress(GradsyncError):
                self._job.detach()
            if self._owned_client is not None:
                self._owned_client.close()
            self._log.close()

    # inside

    def _declare(self, norm_type: float, timeout: float | None = None) -> None:
        self._measurer = self._held.measurer(norm_type)
        if self._deferral is not None:
            self._deferral.check(self._measurer)
        self._grads: gradsync.ReducedGrads = self._job.declare(
            self._tensors,
            data_path="stats",
            norm_type=norm_type,
            formula="torch",
            clip=self._clip,
            divergence=self._divergence,
            fingerprint=FINGERPRINT,
            measured_by=self._measurer.measured_by,
            timeout=timeout,
        )
        self._tensors = [
            replace(tensor, weight_fingerprint=None) for tensor in self._tensors
        ]  # training changes the weights from now on
        self._table = rows_in(self._grads.table_memoryview())

    def _settle(self) -> None:
        """Waits for a step whose clip has returned, and raises what it failed of."""
        if self._deferral is not None:
            report = self._deferral.settle()
            if report is not None:
                self._done(report)

    def _refuse_deferred(self, name: str) -> None:
        self._settle()
        check_deferred_call(name, self._deferral is not None, "use clip_grad_norm_() alone, or defer=False")

    def _clip_later(self, deferral: Deferral, max_norm: float, norm_type: float, plain: bool) -> torch.Tensor:
        """Enqueues the clip; the norm that it returns is there when the stream comes to it."""
        arranged = self._arrange(norm_type)
        left = [index for block in arranged.blocks for index in block.group.members]
        if left:
            raise UsageError(
                f"defer=True: the kernels cannot read the gradient of {self._held.names[left[0]]!r}, which has gaps "
                f"or is checked in another order ({len(left)} such); make it contiguous, or use defer=False"
            )
        (placed,) = arranged.placed
        norm = torch.empty((), dtype=getattr(torch, self._grads.norm_dtype), device=self._held.device)

        def enqueue(patience_s: float) -> None:
            self._measurer.defer(placed, arranged.fingerprint, norm, patience_s)

        def ask(within: float) -> gradsync.StepReport:
            self._measurer.take(arranged, self._grads.stamp, self._table)
            self._grads.wrote_all()
            return self._grads.finish(max_norm=max_norm, timeout=within)

        deferral.begin(placed, enqueue, self._grads, ask)
        return self._placed_norm(norm, plain)

    def _prepare(self, norm_type: float) -> Arranged:
        """Measures the gradients into the table; a norm that was not followed by a clip is abandoned."""
        arranged = self._arrange(norm_type)
        self._measurer.measure(arranged, self._grads.stamp, self._table)
        self._grads.wrote_all()
        return arranged

    def _arrange(self, norm_type: float) -> Arranged:
        gradients = self._held.gather()
        if self._half_done is not None:
            self._half_done = None
            self._grads.abandon()
        if float(norm_type) != self._grads.norm_type:
            self._declare(float(norm_type))
        return self._measurer.arrange(gradients, self._grads.check)

    def _end(self, ask: Callable[..., gradsync.StepReport], **how: Any) -> gradsync.StepReport:
        """Ends the step and keeps its report, also when the report raises."""
        try:
            self._report = report = ask(**how)
            found = self._weights.after_step()
        except StepRaised as error:
            self._done(error.report)
            raise
        if found:
            report = replace(report, divergence=(*report.divergence, *found))
        return self._done(report)

    def _done(self, report: gradsync.StepReport) -> gradsync.StepReport:
        """Keeps the report of a step that is done, and logs it where it is due."""
        self._report = report
        if self._log:
            self._log.log(self._job.next_step - 1, lambda: report)
        return report

    def _as_tensor(self, norm: float, plain: bool) -> torch.Tensor:
        value = torch.tensor(norm, dtype=getattr(torch, self._grads.norm_dtype), device=self._held.device)
        return self._placed_norm(value, plain)

    def _placed_norm(self, value: torch.Tensor, plain: bool) -> torch.Tensor:
        if plain or self._mesh is None:
            return value
        # Where torch's norm would be a DTensor, callers take its full_tensor().
        from torch.distributed.tensor import DTensor, Replicate

        if self._norm_spec is None:
            whole: Any = DTensor.from_local(value, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)
            self._norm_spec = whole._spec
        make: Any = DTensor  # from_local takes ten times as long
        made: torch.Tensor = make(value, self._norm_spec, requires_grad=False)
        return made


def _nonfinite(norm_type: float) -> RuntimeError:
    return RuntimeError(
        f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. "
        "To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
    )


def _obey(arranged: Arranged, report: gradsync.StepReport) -> None:
    """Multiplies everything that is held, whether the norm counted it or not."""
    if zeroes(report):
        arranged.zero()
    else:
        arranged.multiply(report.coefficient)
