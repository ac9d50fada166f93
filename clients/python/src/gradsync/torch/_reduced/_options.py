"""The options of `init`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import gradsync
from gradsync.trackers._report_log import LogTo

from .._joining import JoinOptions
from .._placed import Experts, Sharded
from ._deferral import Defer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .._mesh_axes import MeshSpec

__all__ = ["InitOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """What `init` was called with, but for the model and the mode; its docstring explains every field."""

    mesh: MeshSpec | Mapping[str, MeshSpec] | None
    join: JoinOptions
    pp: str | DeviceMesh | None
    ep: Experts | Sequence[Experts]
    sharded: Sharded | Sequence[Sharded]
    tied: Iterable[Sequence[str]]
    layer: Callable[[str], str | None] | None
    clip: gradsync.Clip | None
    norm_type: float
    check_weights: bool
    divergence: Literal["report", "raise"]
    weights_every: int
    timeout: float | None
    defer: Defer
    log_to: LogTo = None
