"""Whether a thread waits for an answer awake: it looks again and again and lets others run, instead of sleeping.

Waking a thread costs tens of microseconds, far more where its CPU went idle meanwhile. Sooner answers gain nothing by
it, since no CPU goes idle for them, and later ones are not worth the CPU (docs/performance.md, "A small step").
"""

from __future__ import annotations

__all__ = ["Awake"]

_FROM_S, _UNTIL_S = 300e-6, 2e-3
_IN_A_ROW = 2  # so many answers that took that long, before one is waited for awake


class Awake:
    """Of one connection; threads may disagree about it without harm."""

    def __init__(self) -> None:
        self._in_a_row = 0

    @property
    def seconds(self) -> float:
        """How long the next answer is waited for awake."""
        return _UNTIL_S if self._in_a_row >= _IN_A_ROW else 0.0

    def took(self, seconds: float) -> None:
        """An answer came after so long."""
        self._in_a_row = self._in_a_row + 1 if _FROM_S <= seconds <= _UNTIL_S else 0
