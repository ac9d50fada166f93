"""The params of a step's calls, in their wire form."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from ._wire import encode_number
from .errors import UsageError

if TYPE_CHECKING:
    from ._job import Job

__all__ = ["UNSET", "ReadySet", "Unset", "fence", "max_norm_param", "step_params", "timeout_param"]

ReadySet = Literal["all"] | Sequence[int] | None


class Unset(Enum):
    """The type of `UNSET`: an argument that was not given, where None means something."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


def step_params(
    job: Job,
    step: int,
    scale: float | None,
    timeout: float | None,
    ready: ReadySet,
    unused: Sequence[int],
    bucket_digests: Sequence[int] | None,
    scaled: bool | None = None,
) -> dict[str, Any]:
    """Of step.finish and norm.compute. With a scale, whatever it is, a loss scaler looks for what is not finite."""
    params = fence(job) | {"step": step}
    params["ready"] = "all" if ready is None or ready == "all" else list(ready)
    if unused:
        params["unused"] = list(unused)
    if scale is not None:
        params["scale"] = encode_number(scale)
    if scaled is not None or scale is not None:
        params["scaled"] = scaled is not False
    if bucket_digests is not None:
        params["bucket_digests"] = list(bucket_digests)
    return params if timeout is None else params | timeout_param(timeout)


def max_norm_param(max_norm: float | None | Unset) -> dict[str, Any]:
    """`max_norm` where it was given: None is a value of its own."""
    if max_norm is UNSET:
        return {}
    return {"max_norm": None if max_norm is None else encode_number(max_norm)}


def fence(job: Job) -> dict[str, Any]:
    """The attempt that a call belongs to."""
    return {"epoch": job.epoch, "attempt": job.attempt}


def timeout_param(timeout: float | None) -> dict[str, Any]:
    """`timeout_ms` where a timeout was given."""
    if timeout is None:
        return {}
    if not timeout > 0:
        raise UsageError(f"timeout={timeout!r}: give seconds above 0, or None for the daemon's default")
    return {"timeout_ms": max(1, round(timeout * 1000))}
