"""The declared gradients of one rank, and the calls of a step: they count, notify the daemon, and finish.

Any thread may call `ready`, `mark_unused` and the methods for callers that count by themselves, because autograd has
threads of its own. The calls that wait (`finish`, `compute_norm`, `apply_clip`) belong to one thread; no other waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from gradsync._tensor import Tensor
from gradsync._wire_errors import local_error
from gradsync.errors import AccumulationError, NotReady, StepInDoubt

from ._arena import Arena
from ._buffer import Buffer
from ._declared import Declared, some_of
from ._layout import Bucket, Layout
from ._report import StepReport
from ._step_request import UNSET, ReadySet, Unset, step_params
from ._step_tracker import StepTracker

if TYPE_CHECKING:
    from gradsync._gpu._arena import GpuArena
    from gradsync._job import Job

    from ._reconnect import Reconnect

__all__ = ["Grads"]


class Grads(Declared):
    """What `Job.declare` returns: memory of every tensor, and the calls of a step."""

    def __init__(
        self,
        job: Job,
        tensors: Sequence[Tensor],
        accumulate: int,
        arena: Arena | GpuArena,
        reply: dict[str, Any],
        reconnect: Reconnect,
    ) -> None:
        super().__init__(job, tensors, reply, reconnect)
        self._accumulate = accumulate
        # Memory of a GPU has to be written before the daemon hears that it is ready.
        self._wait_written = None if isinstance(arena, Arena) else arena.wait_written
        self.early = self._wait_written is None  #: whether saying "ready" during backward costs no wait
        self._layout = Layout(self.tensors, arena, reply, job.meshes, job.rank)
        self.buckets: list[Bucket] = self._layout.buckets
        self.offsets: list[int] = self._layout.offsets
        self._lock = threading.Lock()
        self._tracker = StepTracker(
            [tensor.name for tensor in self.tensors], [b.tensors for b in self.buckets], accumulate
        )
        self._unused: dict[int, None] = {}  # in this step, in the order in which they were marked
        self._unused_notified = 0
        self._micro_batch: int | None = None  # the last one that was said in this step
        self._anew = False  # the step is computed again behind a call that could have been repeated

    # memory

    def input(self, name: str) -> Buffer:
        """The memory that this rank's backward fills: what the rank holds before sync, in `local_shape`.

        Raises:
            UsageError: no tensor of that name was declared.
        """
        return self._layout.input(self.index_of(name))

    def output(self, name: str) -> Buffer:
        """The reduced and clipped gradient after `finish`: what this rank holds after sync.

        If nothing is scattered it is `input(name)` itself. A tensor with a `Partial(op) >> Shard(dim)` over more than
        one rank has an output of its own: `local_shape`, cut along dim in torch.chunk's sizes (the first are rounded
        up; the last ranks may hold fewer elements, or none). Its input then keeps what backward wrote.

        Raises:
            UsageError: no tensor of that name was declared.
        """
        return self._layout.output(self.index_of(name))

    def arena_memoryview(self) -> memoryview:
        """The whole arena in bytes; the input of tensor i starts at `offsets[i]`.

        Raises:
            UsageError: it lies on a GPU.
        """
        return self._layout.arena.memory

    # counting

    def ready(self, name: str, micro_batch: int | None = None) -> None:
        """One more micro-batch of the tensor is in its buffer; the last tensor of a bucket reports the bucket.

        `micro_batch` is its number: findings of non-finite values say which one completed the bucket.

        Raises:
            AccumulationError: the call came more often than declared, or after `mark_unused`.
        """
        index = self._index.get(name)
        if index is None:
            index = self.index_of(name)  # its error says what is declared
        with self._lock:
            if self._retired:
                self._check_open()
            try:
                bucket = self._tracker.ready(index)
            except AccumulationError:
                if not self._repeatable:
                    raise
                self._compute_anew()
                bucket = self._tracker.ready(index)
            self._micro_batch = micro_batch
            if bucket is not None:
                self._send_bucket(bucket, micro_batch)

    def mark_unused(self, name: str) -> None:
        """The tensor gets no gradient in this step.

        Raises:
            AccumulationError: the tensor has become ready in this step.
        """
        index = self.index_of(name)
        with self._lock:
            self._check_open()
            if self._repeatable:
                self._compute_anew()
            bucket = self._tracker.mark_unused(index)
            self._unused[index] = None
            if bucket is not None:
                self._send_bucket(bucket, self._micro_batch)

    def ready_bucket(self, bucket_index: int, micro_batch: int | None = None) -> None:
        """Says now that a bucket is complete; for a caller that counts by itself.

        A bucket without tensors on this rank is not reported.
        """
        if not self.buckets[bucket_index].tensors:
            return
        with self._lock:
            self._send_bucket(bucket_index, micro_batch)

    def mark_unused_index(self, index: int) -> None:
        """Says that tensor `index` gets no gradient in this step; for a caller that counts by itself."""
        with self._lock:
            self._unused[index] = None

    # the step

    def _begun(self) -> bool:
        with self._lock:
            return self._tracker.begun() or bool(self._unused)

    def finish(
        self,
        step: int | None = None,
        scale: float | None = None,
        max_norm: float | None | Unset = UNSET,
        timeout: float | None = None,
        *,
        ready: Literal["all"] | Sequence[int] | None = None,
        unused: Sequence[int] = (),
        bucket_digests: Sequence[int] | None = None,
        scaled: bool | None = None,
        micro_batch: int | None = None,
    ) -> StepReport:
        """Completes the step on all ranks: gradients are reduced, measured and clipped.

        `step` defaults to the one after the last. `max_norm` replaces that of the first clip group for this step;
        `None` and `math.inf` measure only. With `ready` None the counters of this object decide; a caller that counts
        by itself gives "all" or a list of bucket indices. `unused` names further tensors without a gradient, and
        `micro_batch` is the one that completed the buckets that were not notified. `scaled` (default: whether `scale`
        is given) says that there is a loss scaler: a step with a norm that is not finite is then skipped, whatever the
        clip groups were declared to do, and no policy remembers it.

        Raises:
            NotReady: tensors are missing; nothing was sent and the step stays open.
            ClipRaised: a clip group was declared to raise at this norm; the step is done.
            GradientsDiverged: copies differ, with `divergence="raise"`; the step is done.
            RpcError: the step failed on all ranks; the counters are reset and the next attempt may begin. Where a
                daemon was restarted, and other ranks did not come back in time, the same call may be made again, too.
        """
        self._check_whole()
        step, params = self._begin(step, scale, timeout, ready, unused, bucket_digests, scaled, max_norm, micro_batch)
        return self._finish(step, params, timeout)

    def compute_norm(
        self,
        step: int | None = None,
        scale: float | None = None,
        timeout: float | None = None,
        *,
        ready: Literal["all"] | Sequence[int] | None = None,
        bucket_digests: Sequence[int] | None = None,
        scaled: bool | None = None,
        micro_batch: int | None = None,
    ) -> StepReport:
        """The first half of `finish`: it reduces and measures, but multiplies nothing; `apply_clip` has to follow.

        Raises:
            NotReady: tensors are missing; nothing was sent and the step stays open.
            RpcError: the step failed on all ranks.
        """
        self._check_whole()
        step, params = self._begin(step, scale, timeout, ready, (), bucket_digests, scaled, UNSET, micro_batch)
        return self._compute_norm(step, params, timeout)

    # inside

    def _begin(
        self,
        step: int | None,
        scale: float | None,
        timeout: float | None,
        ready: ReadySet,
        unused: Sequence[int],
        bucket_digests: Sequence[int] | None,
        scaled: bool | None,
        max_norm: float | None | Unset,
        micro_batch: int | None,
    ) -> tuple[int, dict[str, Any]]:
        self._check_open()
        if ready is None:
            self._check_complete()
        if self._wait_written is not None:
            self._wait_written()
        step = self._job.next_step if step is None else step
        everything_unused = list(dict.fromkeys([*self._unused, *unused])) if self._unused or unused else ()
        return step, step_params(
            step, scale, timeout, ready, everything_unused, bucket_digests, scaled, max_norm, micro_batch
        )

    def _reset(self) -> None:
        with self._lock:
            self._forget()
            self._anew = False

    def _forget(self) -> None:
        """What was said of this step. The caller holds the lock."""
        super()._reset()
        self._tracker.reset()
        self._micro_batch = None
        self._unused.clear()
        self._unused_notified = 0

    def _compute_anew(self) -> None:
        self._forget()
        self._anew = True

    def _ruled_done(self, wire: dict[str, Any]) -> dict[str, Any]:
        if self._anew:
            self._on_end(wire["step"], wire)
            raise local_error(
                StepInDoubt,
                f"step {wire['step']} was done on all ranks, and this one has computed its gradients again since: they "
                "lie where the reduced ones were",
                "go on from a checkpoint, on all ranks",
            )
        return wire

    def _send_bucket(self, bucket: int, micro_batch: int | None) -> None:
        if self._wait_written is not None:
            self._wait_written()
        # The daemon has to know the unused tensors before the bucket that they complete.
        job = self._job
        said = {**job.fence(), "step": job.next_step}
        if len(self._unused) > self._unused_notified:
            new = list(self._unused)[self._unused_notified :]
            self._unused_notified = len(self._unused)
            job.notify("tensor.unused", {**said, "tensors": new})
        said["bucket"] = bucket
        if micro_batch is not None:
            said["micro_batch"] = micro_batch
        job.notify("bucket.ready", said)

    def _check_complete(self) -> None:
        if self._tracker.complete():  # looks at the buckets, which are fewer than the tensors
            return
        missing = self._tracker.missing()
        if missing:
            names = [self.tensors[index].name for index in missing]
            counts = "" if self._accumulate == 1 else f" (declared: accumulate={self._accumulate})"
            raise local_error(
                NotReady,
                f"{len(names)} of {len(self.tensors)} tensors are neither ready nor unused{counts}: {some_of(names)}",
                "call ready() or mark_unused() for each of them, then finish() again",
                tensors=names,
            )

    def retire(self) -> None:
        """Refuses further steps; views that the caller holds stay mapped."""
        super().retire()
        self._layout.forget_buffers()
