"""Adaptive clipping in the plainest form: thresholds of a run of norms, by numpy and by the words of the sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["AutoClip", "AutoClipToTheLetter", "ZClip", "thresholds"]


@dataclass
class AutoClip:
    """Auto gradient clipping: the smaller of a hard limit and a percentile of the last norms.

    In this order: threshold of the norms so far (the hard limit alone before `warmup` of them), clip, append the norm
    as it was before clipping, drop the oldest beyond `window`. Two things are not of the source: a norm that is not
    finite is not appended, and a percentile of 0 is no threshold.
    """

    grad_clip_norm: float = 1.0
    grad_clip_percentile: float = 95.0
    window: int = 1000
    warmup: int = 100
    history: list[float] = field(default_factory=list)

    def threshold(self, norm: float) -> float:
        if len(self.history) < self.warmup:
            return self.grad_clip_norm
        adaptive = float(np.percentile(np.array(self.history), self.grad_clip_percentile))
        return min(self.grad_clip_norm, adaptive) if adaptive > 0 else self.grad_clip_norm

    def append(self, norm: float) -> None:
        if math.isfinite(norm):
            self.history.append(norm)
            if len(self.history) > self.window:
                self.history.pop(0)


@dataclass
class AutoClipToTheLetter(AutoClip):
    """The same without those two things: every norm is appended, and Python's `min` compares whatever came out."""

    def threshold(self, norm: float) -> float:
        if len(self.history) < self.warmup:
            return self.grad_clip_norm
        with np.errstate(invalid="ignore"):
            adaptive = float(np.percentile(np.array(self.history), self.grad_clip_percentile))
        return min(self.grad_clip_norm, adaptive)

    def append(self, norm: float) -> None:
        self.history.append(norm)
        if len(self.history) > self.window:
            self.history.pop(0)


@dataclass
class ZClip:
    """ZClip, mode zscore with adaptive scaling, and its `max_grad_norm` on top."""

    max_grad_norm: float = 1.0
    z: float = 2.5
    alpha: float = 0.97
    warmup: int = 25
    buffer: list[float] = field(default_factory=list)
    mean: float = 0.0
    variance: float = 0.0

    def clip_value(self, norm: float) -> float | None:
        if len(self.buffer) < self.warmup:
            return None
        deviation = math.sqrt(self.variance)
        if deviation == 0:  # not of the source, which then clips to the mean for ever
            return None
        score = (norm - self.mean) / (deviation + 1e-6)
        return self.mean + (self.z * deviation) / (score / self.z) if score > self.z else None

    def threshold(self, norm: float) -> float:
        """Infinity where a finite norm is not clipped by its score; then the limit alone decides."""
        value = self.clip_value(norm) if math.isfinite(norm) else None
        return min(self.max_grad_norm, math.inf if value is None else value)

    def append(self, norm: float) -> None:
        if not math.isfinite(norm):
            return
        if len(self.buffer) < self.warmup:
            self.buffer.append(norm)
            if len(self.buffer) == self.warmup:
                self.mean = sum(self.buffer) / self.warmup
                self.variance = sum((norm - self.mean) * (norm - self.mean) for norm in self.buffer) / self.warmup
            return
        clipped = self.clip_value(norm)
        value = norm if clipped is None else clipped
        self.mean = self.alpha * self.mean + (1 - self.alpha) * value
        self.variance = self.alpha * self.variance + (1 - self.alpha) * ((value - self.mean) * (value - self.mean))


def thresholds(clipper: AutoClip | ZClip, norms: Sequence[float]) -> list[float]:
    """The threshold of each step of a run."""
    found = []
    for norm in norms:
        found.append(clipper.threshold(norm))
        clipper.append(norm)
    return found
