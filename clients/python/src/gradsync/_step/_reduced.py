"""Gradients that the framework reduced, as one rank declared them: a table of what it finds, and the calls of a step.

No gradient memory is shared: the rank writes one row per tensor, the daemon answers with norm and coefficient, and the
rank multiplies what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradsync._declaration_file import save_rank
from gradsync._tensor import Tensor
from gradsync._transport._calls import Pending
from gradsync._wire_errors import local_error
from gradsync.errors import NotReady, RpcError, UsageError

from ._arena import Arena
from ._declared import Declared, some_of
from ._report import Finding, StepReport, decode_report, findings_in
from ._row import ABSENT, ROW_BYTES, Row
from ._step_request import UNSET, Unset, step_params

if TYPE_CHECKING:
    import os

    from gradsync._job import Job

    from ._reconnect import Reconnect

__all__ = ["Answer", "ReducedGrads", "StepUnderway", "check_stats_arguments", "table_bytes"]


def table_bytes(tensors: Sequence[Tensor]) -> int:
    """The bytes of the table of these tensors; at least one row."""
    return ROW_BYTES * max(1, len(tensors))


@dataclass(frozen=True, slots=True)
class StepUnderway:
    """A step that was asked for by `ReducedGrads.begin`."""

    step: int
    pending: Pending


class Answer:
    """The answer to `ReducedGrads.begin`; it is decoded as far as somebody wants to know."""

    __slots__ = ("_name_of", "_wire")

    def __init__(self, wire: Mapping[str, Any], name_of: Callable[[int], str]) -> None:
        self._wire = wire
        self._name_of = name_of

    def findings(self) -> tuple[float, list[Finding]]:
        """The norm, and which findings the report has."""
        return findings_in(self._wire)

    def report(self) -> StepReport:
        return decode_report(self._wire, self._name_of)


class ReducedGrads(Declared):
    """What `Job.declare(…, data_path="stats")` returns. Every call belongs to one thread."""

    def __init__(
        self,
        job: Job,
        tensors: Sequence[Tensor],
        arena: Arena,
        reply: dict[str, Any],
        reconnect: Reconnect,
        options: dict[str, Any],
        measured_by: str = "",
    ) -> None:
        super().__init__(job, tensors, reply, reconnect)
        self._arena = arena
        self._options = options
        self._measured_by = measured_by
        self._written = bytearray(len(self.tensors))
        self.norm_type = float(options["norm_type"])  #: p of the powers that rows are made of
        self.norm_dtype: str = reply["norm_dtype"]  #: the type of the job's norm, the same on every rank

    @property
    def stamp(self) -> int:
        """The first field of a row of this attempt; 0 stands for a tensor without a gradient."""
        return self._job.stamp

    @property
    def next_step(self) -> int:
        """The number of the step that comes next."""
        return self._job.next_step

    @property
    def patience_s(self) -> float:
        """How long the daemon waits for the ranks of the coming step, where the call does not say."""
        welcome = self._job._session.welcome
        return welcome.step_s if self._finished_once else welcome.first_step_s

    def table_memoryview(self) -> memoryview:
        """The rows, 64 bytes each in the order of `tensors`, for a caller that fills them by itself."""
        return self._arena.memory[: ROW_BYTES * len(self.tensors)]

    def write(self, name: str, row: Row | Iterable[float] | None) -> None:
        """Says what this rank found in a gradient: its statistics, its values, or None where it has no gradient.

        Raises:
            UsageError: no tensor of that name was declared.
        """
        self._check_open()
        index = self.index_of(name)
        if row is None:
            data = ABSENT
        else:
            statistics = row if isinstance(row, Row) else Row.of(row, self.norm_type)
            data = statistics.pack(self.stamp)
        self._arena.memory[index * ROW_BYTES : (index + 1) * ROW_BYTES] = data
        self._written[index] = 1

    def wrote_all(self) -> None:
        """For a caller that filled the table by itself."""
        self._written[:] = b"\1" * len(self._written)

    def finish(
        self,
        step: int | None = None,
        scale: float | None = None,
        max_norm: float | None | Unset = UNSET,
        timeout: float | None = None,
        scaled: bool | None = None,
    ) -> StepReport:
        """Completes the step on all ranks; each then multiplies all it holds of a clip group by its coefficient.

        `step` defaults to the one after the last; `max_norm` replaces that of the first clip group for this step;
        `None` and `math.inf` measure only.
        `scaled` says that there is a loss scaler, which skips the step where a norm is not finite, whatever the clip
        groups were declared to do, and no policy remembers it (default: where `scale` is given).

        Raises:
            NotReady: rows were not written; nothing was sent and the step stays open.
            ClipRaised: a clip group was declared to raise at this norm; the step is done.
            GradientsDiverged: copies differ, with `divergence="raise"`; the step is done.
            RpcError: the step failed on all ranks; write the rows again for the next attempt.
        """
        step, params = self._begin(step, scale, timeout, scaled, max_norm)
        return self._finish(step, params, timeout)

    def compute_norm(
        self,
        step: int | None = None,
        scale: float | None = None,
        timeout: float | None = None,
        scaled: bool | None = None,
    ) -> StepReport:
        """The first half of `finish`: the norm without a coefficient; `apply_clip` has to follow.

        Raises:
            NotReady: rows were not written; nothing was sent and the step stays open.
            RpcError: the step failed on all ranks.
        """
        step, params = self._begin(step, scale, timeout, scaled)
        return self._compute_norm(step, params, timeout)

    def begin(self, step: int) -> StepUnderway:
        """`finish` without waiting: it sends the request and returns.

        Raises:
            NotReady: rows were not written; nothing was sent and the step stays open.
        """
        step, params = self._begin(step, None, None, None)
        job = self._job
        return StepUnderway(step, job._session.begin("step.finish", {**job.fence(), **params}, job.seat))

    def collect(self, underway: StepUnderway, patience: float) -> Answer | None:
        """Returns the answer to `begin`; None where none came within `patience`.

        Raises:
            RpcError: the step failed on all ranks; write the rows again for the next attempt.
        """
        try:
            if not self._job._channel.collect(underway.pending, patience):
                return None
            wire = underway.pending.result()
        except RpcError as error:
            self._on_failure(error)
            raise
        self._on_end(underway.step, wire)
        self.check = bool(wire.get("check_next", self.check))
        wire["measured_by"] = self._measured_by
        return Answer(wire, self._name_of)

    def come_back(self) -> None:
        """After a restart of the daemon: declares again there. What was asked for by `begin` is given up.

        Raises:
            ConnectionLost: the daemon does not come back, or does not take the rank.
        """
        result = self._reconnect.settle(self.stamp)
        if result is not None:  # done, and given up: the policies remember it
            self._job.note_done(result["epoch"], result["attempt"])
        self._come_back(None)
        ruled = self._reconnect.ruled()
        if ruled is not None:
            self._job.note_done(ruled["epoch"], ruled["attempt"])
        self._reset()

    def save_declaration(self, path: str | os.PathLike[str]) -> None:
        """Writes this rank's line into a file that `gradsyncd plan check` reads; every rank adds its own."""
        job = self._job
        only_mesh = next(iter(job.meshes)) if len(job.meshes) == 1 else None
        save_rank(
            Path(path), job.world_size, job.meshes, self._options, job.rank, [t.encode(only_mesh) for t in self.tensors]
        )

    # inside

    def _begin(
        self,
        step: int | None,
        scale: float | None,
        timeout: float | None,
        scaled: bool | None,
        max_norm: float | None | Unset = UNSET,
    ) -> tuple[int, dict[str, Any]]:
        self._check_open()
        self._check_whole()
        if 0 in self._written:
            missing = [tensor.name for tensor, written in zip(self.tensors, self._written, strict=True) if not written]
            raise local_error(
                NotReady,
                f"{len(missing)} of {len(self.tensors)} rows are not of this attempt: {some_of(missing)}",
                "write() each of them, None for a tensor without a gradient, then finish() again",
                tensors=missing,
            )
        step = self._job.next_step if step is None else step
        return step, step_params(step, scale, timeout, "all", (), None, scaled, max_norm)

    def _begun(self) -> bool:
        return any(self._written)

    def _step_call(self, method: str, params: dict[str, Any] | None, timeout: float | None) -> dict[str, Any]:
        wire = super()._step_call(method, params, timeout)
        wire["measured_by"] = self._measured_by
        return wire

    def _come_back(self, timeout: float | None) -> None:
        before = self.stamp
        super()._come_back(timeout)
        fields = self.table_memoryview().cast("Q")
        for index in range(0, len(fields), ROW_BYTES // fields.itemsize):
            if fields[index] == before:
                fields[index] = self.stamp

    def _reset(self) -> None:
        super()._reset()
        self._written = bytearray(len(self.tensors))  # what was written has the stamp of an attempt that is over


def check_stats_arguments(accumulate: int, tensors: Sequence[Tensor]) -> None:
    """Raises UsageError for what only means something where the sidecar reduces."""
    if accumulate != 1:
        raise UsageError(f"accumulate={accumulate}: on data path stats the framework accumulates; leave accumulate out")
    for tensor in tensors:
        if tensor.divisor is not None:
            raise UsageError(
                f"Tensor({tensor.name!r}).divisor: on data path stats the framework has divided; leave divisor out"
            )
