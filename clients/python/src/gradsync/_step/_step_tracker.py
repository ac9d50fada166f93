"""Counts what is ready in one step. Pure: no threads, no I/O; `Grads` holds the lock.

A tensor is complete after exactly `accumulate` calls of `ready`, or after `mark_unused`. Each call returns the bucket
that became complete by it, at most once per bucket and step. A call that raises changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsync.errors import AccumulationError

__all__ = ["StepTracker"]

_UNUSED = -1


class StepTracker:
    """The counters of one step; `buckets[b]` lists the tensor indices of bucket b, each tensor in exactly one."""

    def __init__(self, names: Sequence[str], buckets: Sequence[Sequence[int]], accumulate: int) -> None:
        self._names = names
        self._accumulate = accumulate
        self._sizes = [len(bucket) for bucket in buckets]
        self._bucket_of = [0] * len(names)
        for index, bucket in enumerate(buckets):
            for tensor in bucket:
                self._bucket_of[tensor] = index
        self.reset()

    def reset(self) -> None:
        """Begins a step: nothing is ready."""
        self._counts = [0] * len(self._names)
        self._left = list(self._sizes)

    def ready(self, tensor: int) -> int | None:
        """One more micro-batch of the tensor is done.

        Raises:
            AccumulationError: the tensor is complete already.
        """
        count = self._counts[tensor]
        if 0 <= count < self._accumulate:  # almost every call, of which a step has one per tensor
            self._counts[tensor] = count = count + 1
            if count < self._accumulate:
                return None
            bucket = self._bucket_of[tensor]
            self._left[bucket] = left = self._left[bucket] - 1
            return None if left else bucket
        if count == _UNUSED:
            raise AccumulationError(
                f"'{self._names[tensor]}' became ready after it was marked unused in this step; "
                "mark a tensor unused only when no micro-batch gave it a gradient",
                self._names[tensor],
            )
        raise AccumulationError(
            f"'{self._names[tensor]}' became ready {count + 1} times in this step, declared is "
            f"accumulate={self._accumulate}; call finish() before the next micro-batch, or declare more",
            self._names[tensor],
        )

    def mark_unused(self, tensor: int) -> int | None:
        """The tensor gets no gradient in this step; saying it again changes nothing.

        Raises:
            AccumulationError: a micro-batch gave it one.
        """
        count = self._counts[tensor]
        if count == _UNUSED:
            return None
        if count > 0:
            raise AccumulationError(
                f"'{self._names[tensor]}' cannot be unused: it became ready {count} times in this step; "
                "call ready() for the micro-batches that are left",
                self._names[tensor],
            )
        self._counts[tensor] = _UNUSED
        return self._complete(tensor)

    def missing(self) -> list[int]:
        """Tensors neither ready nor unused, in declaration order."""
        return [tensor for tensor, count in enumerate(self._counts) if count not in (_UNUSED, self._accumulate)]

    def unused(self) -> list[int]:
        """Tensors marked unused, in declaration order."""
        return [tensor for tensor, count in enumerate(self._counts) if count == _UNUSED]

    def count(self, tensor: int) -> int:
        """Micro-batches seen; 0 for an unused tensor."""
        return max(self._counts[tensor], 0)

    def begun(self) -> bool:
        """Whether any tensor is ready or unused, or a micro-batch of one."""
        return any(self._counts)

    def complete(self) -> bool:
        """Whether every bucket is complete."""
        return not any(self._left)

    def _complete(self, tensor: int) -> int | None:
        bucket = self._bucket_of[tensor]
        self._left[bucket] -= 1
        return bucket if self._left[bucket] == 0 else None
