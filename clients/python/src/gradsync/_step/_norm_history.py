"""The norms of a run as `AutoClip` remembers them. It is equal on all ranks, because their reports are.

The daemon remembers the norms of all other policies. This one does what a training script of its own would do: it hands
`max_norm` to each step, so it needs no daemon that knows it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from gradsync._clip import Clip
from gradsync._policies import AutoClip
from gradsync.errors import UsageError

from ._step_request import UNSET, Unset

__all__ = ["NormHistory", "history_of"]


class NormHistory:
    """The last norms, and the threshold that follows from them. Calls belong to the thread of the steps."""

    def __init__(self, policy: AutoClip, ceiling: float | None) -> None:
        self._policy = policy
        self._ceiling = ceiling
        self._norms: deque[float] = deque()
        self._sorted: list[float] = []  # without NaN, which has no order
        self._nans = 0

    def limit(self, max_norm: float | None | Unset) -> float | None:
        """The threshold of the coming step, under the ceiling `max_norm`, if it is given, else under the declared one.

        None: there is neither. A percentile that is not finite is no threshold, which is what Python's
        `min(ceiling, percentile)` makes of it.
        """
        ceiling = self._ceiling if max_norm is UNSET else max_norm
        if len(self._norms) < self._policy.warmup or self._nans:
            return ceiling
        percentile = self._percentile()
        if not math.isfinite(percentile):
            return ceiling
        return percentile if ceiling is None else min(ceiling, percentile)

    def append(self, norm: float) -> None:
        """Remembers the norm of a step, as it was before clipping, whatever it was."""
        self._norms.append(norm)
        self._count(norm)
        if len(self._norms) > self._policy.window:
            oldest = self._norms.popleft()
            if math.isnan(oldest):
                self._nans -= 1
            else:
                del self._sorted[bisect_left(self._sorted, oldest)]

    def save(self) -> list[float]:
        """The norms, the oldest first."""
        return list(self._norms)

    def load(self, norms: Iterable[float]) -> None:
        """Goes on from saved norms."""
        self._norms.clear()
        self._sorted.clear()
        self._nans = 0
        for norm in norms:
            self.append(float(norm))

    def _count(self, norm: float) -> None:
        if math.isnan(norm):
            self._nans += 1
        else:
            insort(self._sorted, norm)

    def _percentile(self) -> float:
        """Linear between the two nearest norms, with the bits of `numpy.percentile`."""
        place = (len(self._sorted) - 1) * (self._policy.percentile / 100)
        index = int(place)
        if index >= len(self._sorted) - 1:
            return self._sorted[-1]
        share = place - index
        low, high = self._sorted[index], self._sorted[index + 1]
        return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def history_of(clip: Clip | Mapping[str, Clip] | None) -> NormHistory | None:
    """The history that a declaration needs: that of its one clip group, where its policy is `AutoClip`."""
    settings = [clip] if isinstance(clip, Clip) else [*(clip or {}).values()]
    found = [one for one in settings if isinstance(one.policy, AutoClip)]
    if not found:
        return None
    return NormHistory(found[0].policy, found[0].max_norm)  # type: ignore[arg-type]


def load_norms(history: NormHistory | None, state: Mapping[str, Any]) -> None:
    """Hands the norms of a saved state to the history.

    Raises:
        UsageError: only one of the two is there.
    """
    norms = state.get("norms")
    if (norms is None) != (history is None):
        saved, declared = ("another policy", "Clip.auto()") if norms is None else ("Clip.auto()", "another policy")
        raise UsageError(f"load_state_dict() of a state of {saved}, and the clip is {declared}; declare the same clip")
    if history is not None and norms is not None:
        history.load(norms)
