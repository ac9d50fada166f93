"""The options of `attach`, checked before any other rank waits for this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import gradsync
from gradsync._options import check_divergence, encode_options
from gradsync.errors import UsageError
from gradsync.trackers._report_log import LogTo, check_log_to

from .._joining import JoinOptions
from .._weights import check_weights_every

if TYPE_CHECKING:
    from .._mesh_axes import MeshSpec

__all__ = ["AttachOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """What `attach` was called with, but for the module; its docstring explains every field.

    Raises:
        UsageError: a value is not among those that are allowed.
    """

    mesh: MeshSpec | Mapping[str, MeshSpec] | None
    join: JoinOptions
    accumulate: int
    clip: gradsync.Clip | Mapping[str, gradsync.Clip] | None
    formula: Literal["strict", "torch"]
    weights: Literal["check", "broadcast", "skip"]
    norm_type: float
    reduce: Literal["mean", "sum"]
    buckets: Literal["default", "torch"]
    partial_sums: Literal["exact", "bfloat16"]
    clip_group: Callable[[str], str] | None
    layer: Callable[[str], str | None] | None
    divergence: Literal["report", "raise"]
    weights_every: int
    overlap: bool
    shard: str | None
    timeout: float | None
    log_to: LogTo = None

    def __post_init__(self) -> None:
        if self.weights not in ("check", "broadcast", "skip"):
            raise UsageError(f"weights={self.weights!r}: one of 'check', 'broadcast', 'skip'")
        if self.reduce not in ("mean", "sum"):
            raise UsageError(f"reduce={self.reduce!r}: one of 'mean', 'sum'")
        check_divergence(self.divergence)
        check_weights_every(self.weights_every)
        check_log_to(self.log_to)
        encode_options(
            "arena",
            self.accumulate,
            self.norm_type,
            self.clip,
            self.formula,
            self.buckets,
            partial_sums=self.partial_sums,
        )
