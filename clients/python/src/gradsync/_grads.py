"""The declared gradients of one rank, and the step: count, notify, finish.

Threads: `ready`, `mark_unused` and the `…_index` hooks may be called from any thread (autograd has its own); the
calls that wait (`finish`, `compute_norm`, `apply_clip`) belong to one thread. Nothing but those calls waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._arena import Arena
from ._buffer import Buffer
from ._declared import Declared, some_of
from ._layout import Bucket, Layout
from ._report import StepReport
from ._step_request import UNSET, ReadySet, StepParams, Unset, step_params
from ._step_tracker import StepTracker
from ._tensor import Tensor
from ._wire import dump, notification
from ._wire_errors import local_error
from .errors import NotReady

if TYPE_CHECKING:
    from ._comeback import Comeback
    from ._job import Job

__all__ = ["Grads"]

_KEPT_BYTES = 256 << 10  # a bucket of less is reduced in the time of a message or two


class Grads(Declared):
    """What `Job.declare` returns: memory of every tensor, and the calls of a step."""

    def __init__(
        self,
        job: Job,
        tensors: Sequence[Tensor],
        accumulate: int,
        arena: Arena,
        reply: dict[str, Any],
        comeback: Comeback,
    ) -> None:
        super().__init__(job, tensors, reply, comeback)
        self._accumulate = accumulate
        self._layout = Layout(self.tensors, arena, reply, job.meshes, job.rank)
        self.buckets: list[Bucket] = self._layout.buckets
        self.offsets: list[int] = self._layout.offsets
        self._lock = threading.Lock()
        self._tracker = StepTracker(
            [tensor.name for tensor in self.tensors], [b.tensors for b in self.buckets], accumulate
        )
        self._unused: dict[int, None] = {}  # of this step, in the order said
        self._unused_notified = 0

    # memory

    def input(self, name: str) -> Buffer:
        """The memory this rank's backward writes: what it holds before sync, `local_shape`.

        Raises:
            UsageError: no tensor of that name was declared.
        """
        return self._layout.input(self.index_of(name))

    def output(self, name: str) -> Buffer:
        """The reduced, clipped gradient after `finish`: what this rank holds after sync.

        Where nothing is scattered it is `input(name)` itself. A tensor with a `Partial(op) >> Shard(dim)` over more
        than one rank has memory of its own for it: `local_shape`, cut along dim in torch.chunk's sizes (ceil first;
        the last ranks may hold less, or no element at all), and its input keeps what backward wrote.

        Raises:
            UsageError: no tensor of that name was declared.
        """
        return self._layout.output(self.index_of(name))

    def arena_memoryview(self) -> memoryview:
        """The whole arena in bytes; the input of tensor i starts at `offsets[i]`."""
        return self._layout.arena.memory

    # counting

    def ready(self, name: str, micro_batch: int | None = None) -> None:
        """One more micro-batch of the tensor is in its buffer; its bucket goes out with its last tensor.

        Raises:
            AccumulationError: more often than declared, or after `mark_unused`.
        """
        index = self._index.get(name)
        if index is None:
            index = self.index_of(name)  # which says what is declared
        with self._lock:
            if self._retired:
                self._check_open()
            bucket = self._tracker.ready(index)
            if bucket is not None:
                self._send_bucket(bucket, micro_batch)

    def mark_unused(self, name: str) -> None:
        """The tensor gets no gradient in this step.

        Raises:
            AccumulationError: it has become ready in this step.
        """
        index = self.index_of(name)
        with self._lock:
            self._check_open()
            bucket = self._tracker.mark_unused(index)
            self._unused[index] = None
            if bucket is not None:
                self._send_bucket(bucket, None)

    def ready_bucket(self, bucket_index: int, micro_batch: int | None = None) -> None:
        """Says now that a bucket is complete; for a caller that counts by itself.

        Of a bucket without tensors on this rank there is nothing to say.
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
    ) -> StepReport:
        """Completes the step on all ranks: reduced, measured, clipped.

        `step` defaults to the one after the last; `max_norm` replaces that of the first clip group for this step;
        `None` and `math.inf` measure only.
        `ready` None trusts the counters of this object; "all", or a list of bucket indices, is the word of a caller
        that counts by itself; `unused` are tensors that this call alone says to be so. `scaled` says that there is a
        loss scaler, which skips the step where a norm is not finite, whatever the clip groups were declared to do, and
        no policy remembers it (default: where `scale` is given).

        Raises:
            NotReady: tensors are missing; nothing was sent and the step stays open.
            ClipRaised: a clip group was declared to raise at this norm; the step is done.
            RpcError: the step failed on all ranks; the counters are reset and the next attempt may begin.
        """
        self._check_whole()
        step, params = self._begin(step, scale, timeout, ready, unused, bucket_digests, scaled, max_norm)
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
    ) -> StepReport:
        """The first half of `finish`: reduced and measured, nothing multiplied; `apply_clip` has to follow.

        Raises:
            NotReady: tensors are missing; nothing was sent and the step stays open.
            RpcError: the step failed on all ranks.
        """
        self._check_whole()
        step, params = self._begin(step, scale, timeout, ready, (), bucket_digests, scaled)
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
        max_norm: float | None | Unset = UNSET,
    ) -> tuple[int, StepParams]:
        self._check_open()
        if ready is None:
            self._check_complete()
        step = self._job.next_step if step is None else step
        everything_unused = list(dict.fromkeys([*self._unused, *unused])) if self._unused or unused else ()
        return step, step_params(step, scale, timeout, ready, everything_unused, bucket_digests, scaled, max_norm)

    def _reset(self) -> None:
        super()._reset()
        with self._lock:
            self._tracker.reset()
            self._unused.clear()
            self._unused_notified = 0

    def _send_bucket(self, bucket: int, micro_batch: int | None) -> None:
        # What is unused has to be said before the bucket that it completes.
        job = self._job
        head = f'{{"epoch":{job.epoch},"attempt":{job.attempt},"step":{job.next_step}'
        if len(self._unused) > self._unused_notified:
            new = list(self._unused)[self._unused_notified :]
            self._unused_notified = len(self._unused)
            job.notify(notification("tensor.unused", f'{head},"tensors":{dump(new)}}}'))
        tail = "" if micro_batch is None else f',"micro_batch":{micro_batch}'
        # The call that ends the step says of the last bucket what this does, and is about to follow.
        keep = not tail and self.buckets[bucket].nbytes <= _KEPT_BYTES and self._tracker.complete()
        job.notify(notification("bucket.ready", f'{head},"bucket":{bucket}{tail}}}'), keep=keep)

    def _check_complete(self) -> None:
        if self._tracker.complete():  # a look at the buckets, not at every tensor
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
        """Refuses further steps; views stay mapped as long as somebody holds them."""
        super().retire()
        self._layout.forget_buffers()
