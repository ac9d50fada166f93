"""Checks the `clip` of `init`, for mode `clip` and for mode `observe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import gradsync
from gradsync._clip import MOST_WATCHING
from gradsync.errors import UsageError

__all__ = ["adapts", "check_clip", "obeyed_by_caller", "watching"]


def check_clip(clip: object) -> None:
    """Raises UsageError unless `clip` is one Clip or None: gradients of init() are one clip group."""
    if clip is not None and not isinstance(clip, gradsync.Clip):
        raise UsageError(f"init(clip={clip!r}): give one gradsync.Clip, or None")


def adapts(clip: gradsync.Clip | Mapping[str, gradsync.Clip] | None) -> bool:
    """Whether a clip group has a threshold that follows the norms of the run, which may begin without one."""
    settings = [clip] if isinstance(clip, gradsync.Clip) else list((clip or {}).values())
    return any(isinstance(one.policy, (gradsync.Percentile, gradsync.ZScore)) for one in settings)


def obeyed_by_caller(clip: gradsync.Clip | None) -> gradsync.Clip:
    """The settings of mode `clip`, where the caller steps the optimizer whatever the report says.

    Raises:
        UsageError: these settings may skip steps.
    """
    clip = gradsync.Clip() if clip is None else clip
    for setting in ("nonfinite", "spike"):
        if getattr(clip, setting) == "skip":
            raise UsageError(
                f"init(clip=…, {setting}='skip'): after clip_grad_norm_() the caller steps the optimizer, so nothing "
                f"can skip it; give {setting}='raise'"
                + (" or 'zero'" if setting == "nonfinite" else " or 'clip'")
                + ", or attach() and gs.step(optimizer)"
            )
    return clip


def watching(clip: gradsync.Clip | None) -> gradsync.Clip | None:
    """The settings of mode `observe`, where the policy only watches, like those in `watch`.

    Raises:
        UsageError: more policies would watch than are allowed.
    """
    if clip is None:
        return None
    if clip.policy == gradsync.Observe() or clip.policy in clip.watch:
        return replace(clip, policy=gradsync.Observe())
    if len(clip.watch) == MOST_WATCHING:
        raise UsageError(
            f"init(clip=…) in mode observe: {clip.policy} watches as well, beside {MOST_WATCHING} policies, and "
            f"{MOST_WATCHING} are the most; leave one of Clip(watch=…) out"
        )
    return replace(clip, policy=gradsync.Observe(), watch=(clip.policy, *clip.watch))
