"""Whether a step is in its last micro-batch: torch does not say, so it is learnt from the step before.

A backward ends with the parameter nearest to the input, so the hooks of that one end the micro-batches. Parameters that
fire equally often between these ends are regular, and their hooks say how far a step is. Backward passes are not
counted: re-entrant checkpointing nests them, and a part of the module that some micro-batches use makes their numbers
unequal. Where most hooks are not regular, no micro-batch is taken for the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["Rhythm"]

_NEVER = 1 << 60


class Rhythm:
    def __init__(self, parameters: int, accumulate: int) -> None:
        self._accumulate = accumulate
        self._hooks: list[int] = []  # parameters in the order in which their hooks fired in this step
        self._longest: list[int] = []  # the newest of the steps with most of them
        self._regular = [False] * parameters
        self._heard = 0  # hooks of regular parameters in this step
        self._before_last = _NEVER  # of these, those of all micro-batches but the last

    @property
    def beats(self) -> int:
        """Hooks of this step so far."""
        return len(self._hooks)

    @property
    def in_last_micro_batch(self) -> bool:
        """Whether a step like the one before is in its last micro-batch now."""
        return self._heard > self._before_last or self._accumulate == 1

    def beat(self, parameter: int) -> None:
        """The hook of a parameter fired."""
        self._hooks.append(parameter)
        self._heard += self._regular[parameter]

    def learn(self, counts: Sequence[int]) -> None:
        """The step is over; `counts` are its hooks per parameter. A shorter step than others teaches nothing."""
        if len(self._hooks) < len(self._longest) or self._hooks == self._longest:
            return
        self._longest = self._hooks
        bars = [Counter(bar) for bar in self._bars(counts)]
        first = bars[0]
        self._regular = [first[i] > 0 and all(bar[i] == first[i] for bar in bars) for i in range(len(counts))]
        hooks = sum(count for count, regular in zip(counts, self._regular, strict=True) if regular)
        if 2 * hooks > len(self._hooks) and len(bars) == self._accumulate:
            self._before_last = hooks - hooks // self._accumulate
        else:
            self._before_last = _NEVER

    def _bars(self, counts: Sequence[int]) -> list[list[int]]:
        """The hooks of each micro-batch; all in one where no parameter can end them."""
        ends = next((i for i in reversed(self._hooks) if counts[i] % self._accumulate == 0), None)
        bars: list[list[int]] = [[]]
        if ends is None:
            return bars
        each, seen = counts[ends] // self._accumulate, 0
        for hook in self._hooks:
            if seen == each and len(bars) < self._accumulate:
                bars.append([])
                seen = 0
            bars[-1].append(hook)
            seen += hook == ends
        return bars

    def restart(self) -> None:
        """The next step begins."""
        self._hooks = []
        self._heard = 0
