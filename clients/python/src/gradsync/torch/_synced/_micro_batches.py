"""Tells whether a step is in its last micro-batch. Torch does not say so; it is learnt from the step before.

A backward ends with the parameter nearest to the input, so the hook of that parameter ends each micro-batch. Parameters
whose hooks fire equally often in every micro-batch are regular, and their hooks say how far a step is. Backward passes
are not counted: re-entrant checkpointing nests them, and a part of the module that only some micro-batches use makes
their numbers unequal. Where most hooks are not regular, no micro-batch is taken for the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["MicroBatches"]

_NEVER = 1 << 60


class MicroBatches:
    """Counts the hooks of a step, and compares them with those of the longest step so far."""

    def __init__(self, parameters: int, accumulate: int) -> None:
        self._accumulate = accumulate
        self._hooks: list[int] = []  # parameters in the order in which their hooks fired in this step
        self._longest: list[int] = []  # the same for the longest step; of equally long ones, the newest
        self._regular = [False] * parameters
        self._regular_hooks = 0  # hooks of regular parameters in this step
        self._before_last = _NEVER  # hooks of regular parameters in all micro-batches but the last
        self._each = 0  # hooks of regular parameters in one micro-batch; 0: not known

    @property
    def hooks(self) -> int:
        """The number of hooks that fired in this step."""
        return len(self._hooks)

    @property
    def in_last(self) -> bool:
        """Whether a step like the one before is in its last micro-batch now."""
        return self._regular_hooks > self._before_last or self._accumulate == 1

    @property
    def current(self) -> int | None:
        """The micro-batch that the step is in, from 0; None where there is but one, and while it is not known."""
        if not self._each or not self._regular_hooks:
            return None
        return (self._regular_hooks - 1) // self._each

    def count_hook(self, parameter: int) -> None:
        """The hook of a parameter fired."""
        self._hooks.append(parameter)
        self._regular_hooks += self._regular[parameter]

    def learn(self, counts: Sequence[int]) -> None:
        """The step is over; `counts` are its hooks per parameter. A shorter step than others teaches nothing."""
        if len(self._hooks) < len(self._longest) or self._hooks == self._longest:
            return
        self._longest = self._hooks
        batches = [Counter(batch) for batch in self._split(counts)]
        first = batches[0]
        self._regular = [first[i] > 0 and all(batch[i] == first[i] for batch in batches) for i in range(len(counts))]
        hooks = sum(count for count, regular in zip(counts, self._regular, strict=True) if regular)
        if 2 * hooks > len(self._hooks) and len(batches) == self._accumulate:
            self._each = hooks // self._accumulate
            self._before_last = hooks - self._each
        else:
            self._before_last, self._each = _NEVER, 0

    def _split(self, counts: Sequence[int]) -> list[list[int]]:
        """The hooks of each micro-batch; all hooks in one list where no parameter can end a micro-batch."""
        last = next((i for i in reversed(self._hooks) if counts[i] % self._accumulate == 0), None)
        batches: list[list[int]] = [[]]
        if last is None:
            return batches
        each, seen = counts[last] // self._accumulate, 0
        for hook in self._hooks:
            if seen == each and len(batches) < self._accumulate:
                batches.append([])
                seen = 0
            batches[-1].append(hook)
            seen += hook == last
        return batches

    def restart(self) -> None:
        """The next step begins."""
        self._hooks = []
        self._regular_hooks = 0
