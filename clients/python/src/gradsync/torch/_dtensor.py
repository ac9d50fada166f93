"""Recognises DTensors without importing torch.distributed."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_dtensor", "is_partial", "local_tensor"]


def is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this rank holds. For uneven nested shards DTensor's own arithmetic is wrong, its memory right."""
    local: Any = tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    found: torch.Tensor = local.wait() if hasattr(local, "wait") else local
    return found.detach()


def is_partial(placement: Any) -> bool:
    return bool(placement.is_partial())
