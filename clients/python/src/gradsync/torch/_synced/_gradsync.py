"""What `attach` returns: the step of a module whose gradients the sidecar reduces, measures and clips."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from gradsync import UNSET, GradsyncError, StepReport, Unset
from gradsync.errors import ConnectionLost, GradientsDiverged, RpcError, StepRaised, UsageError, WeightsDiverged
from gradsync.trackers._report_log import LogsReports, ReportLog

from .._errors import LateGradient
from .._loss_scale import LossScale, loss_scale
from .._parameter_set import ParameterSet
from .._weights import WeightWatch
from ._optimizer_guard import OptimizerGuard, steppable
from ._recorder import Counters, GradientRecorder

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

    from gradsync import Client, Grads, Job

    from ._sharded import Shards


class GradSync(LogsReports):
    """One rank's gradients. Calls belong to the thread that runs backward.

    After the last backward of a step call `step(optimizer)`, or `finish()` and then the optimizer yourself.
    """

    def __init__(
        self,
        found: ParameterSet,
        recorder: GradientRecorder,
        job: Job,
        grads: Grads,
        owned_client: Client | None,
        weights: WeightWatch,
        log: ReportLog,
        shards: Shards | None = None,
        *,
        adapts: bool,
    ) -> None:
        """`adapts` says that a threshold follows the norms of the run."""
        self._found = found
        self._recorder = recorder
        self._job = job
        self._grads = grads
        self._owned_client = owned_client
        self._weights = weights
        self._log = log
        self._index = {name: index for index, name in enumerate(found.names)}
        self._shards = shards
        self._guard = OptimizerGuard(found, recorder.unreduced, self._against_unscaling, shards)
        self._finished = False  # finish() ended the step, and the caller steps the optimizer
        self._unscaled = False  # the gradients of the last step were divided by a scale
        self._adapts = adapts
        self._closed = False
        self.report: StepReport | None = None  #: the report of the last step

    def step(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        scaler: GradScaler | None = None,
        scale: float | None = None,
        max_norm: float | None | Unset = UNSET,
        zero_grad: bool = True,
        timeout: float | None = None,
    ) -> StepReport:
        """Ends the step: gradients reduced and clipped on all ranks, optimizers stepped, gradients dropped.

        Where `report.skipped` no optimizer was stepped and every gradient is dropped: a scheduler that counts optimizer
        steps wants `if not report.skipped: scheduler.step()`.

        With `scaler`, `scaler.scale(loss).backward()` comes before this and `scaler.update()` after it; `unscale_` and
        `scaler.step` are done here. With `scale`, a factor of your own that the loss was multiplied by, gradients are
        divided by it. With either a step with non-finite gradients is skipped on every rank.

        Raises:
            UsageError: `scaler` is not at the beginning of a step, or `scale` is given too; nothing was sent.
            ParameterChanged: the module or the optimizer holds a parameter that is not synchronised.
            LateGradient: a gradient came or changed after its bucket had been launched.
            ClipRaised: a clip group was declared to raise at this norm; the step is done, its gradients are dropped.
            GradientsDiverged, WeightsDiverged: copies differ, with `divergence="raise"`; the same.
            RpcError: with `attempt`: the step failed on all ranks, its gradients are lost, the next may begin; without
                one (bad arguments; ranks that did not come back after a restart of the daemon) the step is still open:
                call this again.
            ConnectionLost: with `step_lost`, the daemon was restarted in the middle of the step: compute it anew.
        """
        self._follow_module()
        optimizers = steppable(optimizer)
        for one in optimizers:
            self._guard.check(one)
        self._check_not_finished()
        held = loss_scale(scaler, scale, optimizers)
        report = self._end(held, scale, max_norm, timeout)
        self._finished = False
        if held is not None:
            held.step(report)
        elif not report.skipped:
            for one in optimizers:
                one.step()
        if zero_grad:
            self._drop()
        return report

    def finish(
        self,
        *,
        scaler: GradScaler | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        scale: float | None = None,
        max_norm: float | None | Unset = UNSET,
        timeout: float | None = None,
    ) -> StepReport:
        """Reduces, measures and clips: every `p.grad` is the result, and None where no rank had a gradient.

        All are None where `report.skipped`, so that an optimizer that is stepped anyway has nothing to do.

        With `scaler` give the `optimizers` that you then step by `scaler.step`, before `scaler.update()`.

        Raises:
            UsageError: `scaler` is not at the beginning of a step, or `scale` is given too; nothing was sent.
            ParameterChanged: a parameter is not what the ranks agreed on.
            LateGradient: a gradient came or changed after its bucket had been launched.
            ClipRaised: a clip group was declared to raise at this norm; the step is done, its gradients are dropped.
            GradientsDiverged, WeightsDiverged: copies differ, with `divergence="raise"`; the same.
            RpcError: with `attempt`: the step failed on all ranks, its gradients are lost, the next may begin; without
                one (bad arguments; ranks that did not come back after a restart of the daemon) the step is still open:
                call this again.
            ConnectionLost: with `step_lost`, the daemon was restarted in the middle of the step: compute it anew.
                Without, and after KeyboardInterrupt and CallTimeout, its outcome is not known: attach again.
        """
        return self._end(loss_scale(scaler, scale, optimizers), scale, max_norm, timeout)

    def _end(
        self, held: LossScale | None, scale: float | None, max_norm: float | None | Unset, timeout: float | None
    ) -> StepReport:
        self._follow_module()
        unused = self._settle()
        self._weights.before_step(lambda index: self._recorder.copy_of(index, unused))
        try:
            report = self._ask(unused, scale if held is None else held.factor, max_norm, timeout)
            report = self._compared(report, held, unused)
        except StepRaised as error:
            if held is not None:
                held.settle_raised()
            report = self._commit(error.report, unused)
            self._drop()
            raise type(error)(report) from None
        self._finished = True
        self._unscaled = held is not None or scale not in (None, 1)
        if held is not None:
            held.settle(report)
        return self._commit(report, unused)

    def _compared(self, report: StepReport, held: LossScale | None, unused: Sequence[int]) -> StepReport:
        """The report, with what differs between the ranks' weights and copies of gradients."""
        try:
            found = self._weights.after_step()
        except WeightsDiverged:
            if held is not None:
                held.settle_raised()
            self._commit(report, unused)
            self._drop()
            raise
        if not found:
            return report
        report = replace(report, divergence=(*report.divergence, *found))
        if self._grads.raises_divergence and any(one.what == "gradients" for one in found):
            raise GradientsDiverged(report)
        return report

    def _settle(self) -> Sequence[int]:
        try:
            return self._recorder.settle()
        except LateGradient:
            self._leave(brief=False)
            raise

    def _ask(
        self, unused: Sequence[int], scale: float | None, max_norm: float | None | Unset, timeout: float | None
    ) -> StepReport:
        """Ends the step; a failure drops the gradients, and one of unknown outcome leaves the job."""
        recorder = self._recorder
        try:
            return self._grads.finish(
                scale=scale,
                max_norm=max_norm,
                timeout=timeout,
                ready="all",
                # The same call says what is unused, so that a step that stays open may still use it.
                unused=[*unused, *recorder.given_by_others(unused)],
                bucket_digests=recorder.digests(unused),
                micro_batch=recorder.micro_batch,
            )
        except (StepRaised, UsageError):
            raise  # The step is done, or nothing was sent and it is still open.
        except RpcError as error:
            if error.attempt is not None:
                recorder.discard()
            raise
        except ConnectionLost as error:
            recorder.discard()
            if not error.step_lost:
                self._close(brief=True)
            raise
        except BaseException:
            # Ctrl-C, or no answer: the others may be reducing, or done, and the same attempt sent again would return
            # their result while the arena holds the next gradients. Leaving the job fails what is still open.
            recorder.discard()
            self._close(brief=True)
            raise

    def _commit(self, report: StepReport, unused: Sequence[int]) -> StepReport:
        """Takes over the result of a step that is done, whether it was skipped or not."""
        report = self._recorder.describe(report)
        absent = [self._index[name] for name in report.absent if name in self._index]
        self._recorder.commit(unused, absent, report.stable_buckets)
        if self._shards is not None:
            self._shards.commit(absent)
        if report.skipped:
            self._drop()
        self.report = report
        if self._log:
            self._log.log(self._job.next_step - 1, lambda: report)
        return report

    def _drop(self) -> None:
        for parameter in self._found.parameters:
            parameter.grad = None
        if self._shards is not None:
            self._shards.drop()

    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer steps: the parameters, in the order of the module; with `shard` this rank's rows."""
        return self._found.parameters[:] if self._shards is None else self._shards.parameters[:]

    def pause(self) -> AbstractContextManager[None]:
        """While this is open (evaluation, a checkpoint) no deadline that waits for this rank runs out."""
        return self._job.pause()

    def verify_weights(self, timeout: float | None = None) -> None:
        """Compares the trainable weights of all ranks now, as before a checkpoint is written. Collective.

        Raises:
            WeightsDiverged: weights that must be equal differ; names the first tensor and its ranks.
            RpcError: they could not be compared, in `timeout` seconds for instance.
        """
        self._weights.verify(timeout)

    def stats(self) -> Counters:
        """Counts of what the adapter did since attach."""
        return replace(self._recorder.counters)

    def state_dict(self) -> dict[str, Any]:
        """The state of the clipping policies, for a checkpoint; it is equal on all ranks, so any rank may save it.

        The object is a `Stateful` of torch.distributed.checkpoint.
        """
        return self._grads.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state; every rank loads the same one, between two steps.

        Raises:
            UsageError: `state` is not the state of clipping policies.
            InvalidParams: the state belongs to other clip groups or policies, or is damaged.
        """
        self._grads.load_state_dict(state)

    def explain(self) -> dict[str, Any]:
        """The plan in words and numbers."""
        return self._grads.explain()

    def close(self) -> None:
        """Leaves the job and makes the module a plain one again: no hooks, gradients in memory of their own."""
        self._close(brief=False)

    def _close(self, *, brief: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._guard.close()
        self._recorder.close()
        if self._shards is not None:
            self._shards.close()
        self._leave(brief=brief)

    def synchronises_any(self, parameter_ids: set[int]) -> bool:
        """Whether this object synchronises one of these parameters."""
        return not self._closed and not parameter_ids.isdisjoint(map(id, self._found.parameters))

    def _against_unscaling(self) -> str:
        if self.report is None or all(p.grad is None for p in self.parameters()):
            return ""
        if self._unscaled:
            return "gradients that were divided by a scale already"
        if self._adapts or any(math.isfinite(group.threshold) for group in self.report.groups):
            return "gradients that were measured, to be clipped, with the scale of the loss still in them"
        return ""

    def _follow_module(self) -> None:
        if self._closed:
            raise UsageError(
                "this GradSync is closed (by close(), an interrupted step, or a later attach); attach again"
            )
        self._recorder.follow_memory()
        if self._found.tree.changed():
            self._recorder.follow_module()
            self._found.check_members()
            self._found.tree.remember()
        if self._shards is not None:
            self._shards.check_memory()
        self._found.check_frozen()

    def _check_not_finished(self) -> None:
        held = any(parameter.grad is not None for parameter in self.parameters())
        if self._finished and held and not self._recorder.unreduced():
            raise UsageError(
                "finish() completed this step already; call optimizer.step() yourself, or step() instead of finish()"
            )

    def _leave(self, *, brief: bool) -> None:
        self._weights.close()
        # The other ranks learn at once that this one will not finish, and need not wait for their deadline.
        with contextlib.suppress(GradsyncError):
            self._job.abandon() if brief else self._job.detach()
        if self._owned_client is not None:
            self._owned_client.abandon() if brief else self._owned_client.close()
        self._log.close(brief=brief)

    def __enter__(self) -> GradSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(brief=isinstance(error, KeyboardInterrupt))
