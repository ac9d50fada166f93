"""How the threshold of a clip group is found: frozen values, checked when made. See docs/clipping.md."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from .errors import UsageError

__all__ = ["AutoClip", "Fixed", "Observe", "Percentile", "Policy", "ZScore", "require_number"]

_MAX_WINDOW = 50_000


class Policy:
    """The base of `Fixed`, `Observe`, `Percentile`, `AutoClip` and `ZScore`."""

    __slots__ = ()

    KIND: ClassVar[str] = ""

    def encode(self) -> dict[str, Any]:
        """The wire form."""
        return {"kind": self.KIND}


@dataclass(frozen=True, slots=True)
class Fixed(Policy):
    """The threshold is `max_norm`."""

    KIND: ClassVar[str] = "fixed"


@dataclass(frozen=True, slots=True)
class Observe(Policy):
    """Nothing is clipped, whatever `max_norm` says."""

    KIND: ClassVar[str] = "observe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile(Policy):
    """A percentile of the last `window` norms, once there are `warmup`; `max_norm` is the ceiling.

    Raises:
        UsageError: a number is out of range.
    """

    percentile: float = 95.0
    window: int = 1000
    warmup: int = 100

    KIND: ClassVar[str] = "percentile"

    def __post_init__(self) -> None:
        if not 0 < require_number("Percentile", "percentile", self.percentile) <= 100:
            raise UsageError(f"Percentile(percentile={self.percentile!r}): give a number above 0, up to 100")
        _require_norms("Percentile", "window", self.window, 1, _MAX_WINDOW)
        _require_norms("Percentile", "warmup", self.warmup, 1, self.window, ", for it ends within the window")

    def encode(self) -> dict[str, Any]:
        """The wire form."""
        return {"kind": self.KIND, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoClip(Percentile):
    """`Percentile` to the letter of its source: it remembers every norm, and 0 is a threshold. See `Clip.auto`."""

    KIND: ClassVar[str] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZScore(Policy):
    """ZClip: a norm more than `z` deviations above the moving mean is clipped; `max_norm` is the ceiling.

    Raises:
        UsageError: a number is out of range.
    """

    z: float = 2.5
    alpha: float = 0.97  #: the weight of the past in the moving mean and variance
    warmup: int = 25

    KIND: ClassVar[str] = "zscore"

    def __post_init__(self) -> None:
        if not 0 < require_number("ZScore", "z", self.z) < math.inf:
            raise UsageError(f"ZScore(z={self.z!r}): give a finite number above 0")
        if not 0 < require_number("ZScore", "alpha", self.alpha) < 1:
            raise UsageError(f"ZScore(alpha={self.alpha!r}): give a number between 0 and 1, such as 0.97")
        _require_norms("ZScore", "warmup", self.warmup, 2, _MAX_WINDOW)

    def encode(self) -> dict[str, Any]:
        """The wire form."""
        return {"kind": self.KIND, **asdict(self)}


def require_number(what: str, field: str, value: object) -> float:
    """`value` as it is, where it is an int or a float.

    Raises:
        UsageError: it is neither; a bool is neither.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{what}({field}={value!r}): give a number, not {type(value).__name__}")
    return value


def _require_norms(what: str, field: str, value: object, least: int, most: int, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{what}({field}={value!r}): give {least} to {most} norms, an int{why}")
