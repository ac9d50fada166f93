"""`GRADSYNC_MODE=off`: the training loop runs unchanged and without the sidecar."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from gradsync import UNSET, StepReport, StepTimings, Unset
from gradsync.trackers._report_log import LogsReports

from .._loss_scale import check_scaler, report_of_scaler
from .._unchanged_state import UnchangedState
from ._optimizer_guard import steppable
from ._recorder import Counters

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler


class OffSync(UnchangedState, LogsReports):
    """Steps the optimizers and drops the gradients; reduces, measures, clips and logs nothing."""

    def __init__(self, model: nn.Module, world_size: int) -> None:
        if world_size > 1:
            warnings.warn(
                f"GRADSYNC_MODE=off with {world_size} ranks: gradients are not synchronised and the ranks drift apart; "
                "unset it, or wrap the module in DistributedDataParallel",
                stacklevel=4,
            )
        self._model = model
        self._counters = Counters()
        self.report: StepReport | None = None

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
        optimizers = steppable(optimizer)
        report = self.finish(scaler=scaler, optimizers=optimizers, scale=scale, max_norm=max_norm, timeout=timeout)
        for one in optimizers:
            one.step() if scaler is None else scaler.step(one)
        if scaler is not None and scaler.is_enabled():
            report = self.report = report_of_scaler(report, scaler, optimizers)
        if zero_grad:
            self._model.zero_grad()
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
        check_scaler(scaler, scale)  # a scaler unscales by itself when it steps
        if scale is not None and scale != 1.0:
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
        self.report = StepReport(
            step=self._counters.steps,
            epoch=0,
            attempt=0,
            next_attempt=0,
            norm=math.nan,
            threshold=math.inf,
            coefficient=1.0,
            clipped=False,
            skipped=False,
            reason="GRADSYNC_MODE=off",
            found_inf=False,
            groups=(),
            layers=(),
            nonfinite=(),
            divergence=(),
            absent=(),
            stable_buckets=(),
            counted_elements=0,
            collectives=0,
            data_path="off",
            policy_digest="",
            timings=StepTimings(0.0, 0.0, 0.0, 0.0, 0.0),
        )
        self._counters.steps += 1
        return self.report

    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer steps: the parameters, whole."""
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    def verify_weights(self, timeout: float | None = None) -> None:
        """Does nothing, because there is no job that could compare."""

    def pause(self) -> AbstractContextManager[None]:
        return nullcontext()

    def stats(self) -> Counters:
        return self._counters

    def explain(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Does nothing, because there is no job to leave."""

    def __enter__(self) -> OffSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
