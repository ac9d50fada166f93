"""Tries which buckets of DTensors may be launched while backward runs (docs/adr/0040).

A script may change a gradient after its last hook, and not all writes to a DTensor leave a trace. So a bucket waits for
step() until three trials went well: it was complete as if to be launched, on all ranks alike, and at step() every
tensor still had the fingerprint and the version of its own last hook, whatever the order of hooks. Later one bucket
that is drawn by lot is tried again in each step that the daemon checks. Where a tensor changed, this rank launches no
bucket of DTensors early any more, and the other ranks learn that from its digests. A step of a trial is right in any
case: nothing of the bucket was launched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

import torch

from .._parameter_set import ParameterSet
from .._statistics._fingerprints import fingerprint

__all__ = ["Trials"]

_NEEDED = 3
_log = logging.getLogger("gradsync.torch")


class Trials:
    """The trials of one rank, of the `buckets` that hold DTensors; `memory` has each tensor's part of the arena."""

    def __init__(
        self,
        found: ParameterSet,
        buckets: Mapping[int, Sequence[int]],
        memory: Sequence[torch.Tensor],
        copied: Collection[int],
        count: int,
        checked: Callable[[], bool],
    ) -> None:
        """`count`: of all buckets. `checked`: whether the daemon checks this step; `copied` tensors are then compared
        before they are reduced, so that their buckets have to wait."""
        self.failed = ""  #: what changed, and where; empty: nothing did
        self.tried = [False] * count  #: per bucket: tried in this step; read by hooks
        self._found = found
        self._buckets = buckets
        self._memory = memory
        self._compared = {bucket for bucket, members in buckets.items() if not set(members).isdisjoint(copied)}
        self._checked = checked
        self._passed = dict.fromkeys(buckets, 0)
        self._prints: dict[int, int] = {}  # of this step, at the last hook of a tensor
        self._complete: list[int] = []  # buckets that would have been launched in this step
        self.begin(0)

    def begin(self, step: int) -> None:
        """A step begins; all ranks draw the same bucket."""
        self._prints.clear()
        self._complete.clear()
        passed = [bucket for bucket, times in self._passed.items() if times >= _NEEDED]
        drawn = Random(step).choice(passed) if passed and self._checked() else None
        for bucket, times in self._passed.items():
            self.tried[bucket] = not self.failed and (times < _NEEDED or bucket == drawn)

    def note(self, tensor: int) -> None:
        """The last hook of a tensor in a bucket that is tried."""
        self._prints[tensor] = self._fingerprint(tensor)

    def hold(self, bucket: int) -> bool:
        """Whether a bucket that is complete waits for step() all the same."""
        if bucket not in self._buckets:
            return False
        if self.tried[bucket]:
            self._complete.append(bucket)
            return True
        return bool(self.failed) or (bucket in self._compared and self._checked())

    def judge(self, written: Collection[int]) -> None:
        """Before the reduction; `written` are tensors of which a version moved or that are not the same any more."""
        for bucket in self._complete:
            for tensor in self._buckets[bucket]:
                if tensor in written or self._fingerprint(tensor) != self._prints[tensor]:
                    self._fail(tensor)
                    return

    def refused(self, bucket: int) -> bool:
        """Whether this rank never launches the bucket early again, which goes into its digest."""
        return bool(self.failed) and bucket in self._buckets

    def learn(self, stable: Collection[int]) -> None:
        """The step is done; in `stable` buckets all ranks were alike."""
        if not self.failed:
            for bucket in self._complete:
                self._passed[bucket] += bucket in stable

    def _fingerprint(self, tensor: int) -> int:
        memory = self._memory[tensor]
        return int(fingerprint(memory)) if memory.numel() else 0

    def _fail(self, tensor: int) -> None:
        name, parameter = self._found.names[tensor], self._found.parameters[tensor]
        later = _hooks_after_ours(parameter)
        by = f" by {' or '.join(later)}, registered after attach()" if later else ""
        self.failed = f"'{name}' was changed after its last hook{by}"
        _log.warning(
            "%s; this step is right, and from the next on gradients of DTensors are reduced in step(), not while "
            "backward runs. Register the hook before attach(), or change gradients between finish() and the optimizer; "
            "attach(overlap=False) if this is meant",
            self.failed,
        )


def _hooks_after_ours(parameter: torch.Tensor) -> list[str]:
    hooks = list((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values())
    names = [f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', repr(hook))}" for hook in hooks]
    ours = [place for place, name in enumerate(names) if name.startswith(f"{__package__}.")]
    return names[ours[-1] + 1 :] if ours else []
