"""The params of a step's calls in their wire form. Epoch and attempt are added when a call is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Literal

from gradsync._wire import encode_number
from gradsync.errors import UsageError

__all__ = ["UNSET", "ReadySet", "Unset", "max_norm_param", "step_params", "timeout_param"]

ReadySet = Literal["all"] | Sequence[int] | None


class Unset(Enum):
    """The type of `UNSET`: an argument that was not given, where None means something."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


def step_params(
    step: int,
    scale: float | None,
    timeout: float | None,
    ready: ReadySet,
    unused: Sequence[int],
    bucket_digests: Sequence[int] | None,
    scaled: bool | None,
    max_norm: float | None | Unset = UNSET,
    micro_batch: int | None = None,
) -> dict[str, Any]:
    """The params of step.finish and norm.compute; a `scale`, whatever its value, stands for a loss scaler."""
    params: dict[str, Any] = {"step": step, "ready": "all" if ready is None or ready == "all" else list(ready)}
    if unused:
        params["unused"] = list(unused)
    if scale is not None:
        params["scale"] = encode_number(scale)
    if scaled is not None or scale is not None:
        params["scaled"] = scaled is not False
    if bucket_digests is not None:
        params["bucket_digests"] = list(bucket_digests)
    if micro_batch is not None:
        params["micro_batch"] = micro_batch
    if max_norm is not UNSET:
        params |= max_norm_param(max_norm)
    if timeout is not None:
        params |= timeout_param(timeout)
    return params


def max_norm_param(max_norm: float | None | Unset) -> dict[str, Any]:
    """`max_norm` where it was given: None is a value of its own, and what an infinite one means."""
    if max_norm == math.inf:
        max_norm = None
    if max_norm is UNSET:
        return {}
    return {"max_norm": None if max_norm is None else encode_number(max_norm)}


def timeout_param(timeout: float | None) -> dict[str, Any]:
    """`timeout_ms` where a timeout was given."""
    if timeout is None:
        return {}
    if not timeout > 0:
        raise UsageError(f"timeout={timeout!r}: give seconds above 0, or None for the daemon's default")
    return {"timeout_ms": max(1, round(timeout * 1000))}
