"""The options of a declaration, equal on all ranks, in their wire form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ._clip import Clip
from ._policies import AutoClip
from ._wire import encode_number
from .errors import UsageError

__all__ = ["check_divergence", "encode_options"]


def encode_options(
    data_path: Literal["arena", "stats"],
    accumulate: int,
    norm_type: float,
    clip: Clip | Mapping[str, Clip] | None,
    formula: Literal["strict", "torch"],
    buckets: Literal["default", "torch"] = "default",
    fingerprint: str = "",
    partial_sums: Literal["exact", "bfloat16"] = "exact",
) -> dict[str, Any]:
    if data_path not in ("arena", "stats"):
        raise UsageError(f"data_path={data_path!r}: one of 'arena', 'stats'")
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise UsageError(f"accumulate={accumulate!r}: give the number of micro-batches of a step, 1 or more")
    if math.isnan(norm_type) or norm_type < 1:
        raise UsageError(f"norm_type={norm_type!r}: give 1 or more, or math.inf")
    if formula not in ("strict", "torch"):
        raise UsageError(f"formula={formula!r}: one of 'strict', 'torch'")
    if buckets not in ("default", "torch"):
        raise UsageError(f"buckets={buckets!r}: one of 'default', 'torch'")
    if data_path == "stats" and buckets != "default":
        raise UsageError(f"buckets={buckets!r}: on data path 'stats' the framework reduces; leave it out")
    if partial_sums not in ("exact", "bfloat16"):
        raise UsageError(f"partial_sums={partial_sums!r}: one of 'exact', 'bfloat16'")
    if data_path == "stats" and partial_sums != "exact":
        raise UsageError(f"partial_sums={partial_sums!r}: on data path 'stats' the framework reduces; leave it out")
    if data_path == "arena" and fingerprint:
        raise UsageError(f"fingerprint={fingerprint!r}: on data path 'arena' the sidecar takes them; leave it out")
    if clip is not None and not isinstance(clip, (Clip, Mapping)):
        raise UsageError(f"clip={clip!r}: give gradsync.Clip(max_norm=…), or one for each clip group by name")
    groups = {"all": clip} if isinstance(clip, Clip) else dict(clip or {})
    for group, settings in groups.items():
        if not isinstance(settings, Clip):
            raise UsageError(f"clip[{group!r}]={settings!r}: give gradsync.Clip(max_norm=…)")
    automatic = [group for group, settings in groups.items() if isinstance(settings.policy, AutoClip)]
    if automatic and len(automatic) < len(groups) and formula != "torch":
        raise UsageError(
            f"clip[{automatic[0]!r}] is Clip.auto(), which has formula 'torch', and a formula is that of all clip "
            "groups; give formula='torch', or Clip.percentile()"
        )
    if automatic:
        formula = "torch"
    options: dict[str, Any] = {
        "accumulate": accumulate,
        "norm_type": encode_number(norm_type),
        "mode": formula,
        "clip": [settings.encode(group) for group, settings in groups.items()],
    }
    if buckets != "default":
        options["buckets"] = buckets
    if fingerprint:
        options["fingerprint"] = fingerprint
    if partial_sums != "exact":
        options["partial_sums"] = partial_sums
    return options if data_path == "arena" else {"data_path": data_path, **options}


def check_divergence(divergence: str) -> None:
    """Raises UsageError unless it is one of the two."""
    if divergence not in ("report", "raise"):
        raise UsageError(f"divergence={divergence!r}: one of 'report', 'raise'")
