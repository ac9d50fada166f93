"""Digests of weights and layouts: equal on two ranks exactly when the bytes are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

__all__ = ["bytes_of", "layout_digest", "weight_digest"]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in logical order, as a flat uint8 tensor."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def layout_digest(strides: Sequence[int]) -> str:
    return hashlib.blake2b(repr(tuple(strides)).encode(), digest_size=4).hexdigest()


def weight_digest(tensor: torch.Tensor) -> str:
    """16 bytes of BLAKE2b over the raw bytes: NaN payloads and the sign of zero count."""
    return hashlib.blake2b(bytes_of(tensor).numpy().data, digest_size=16).hexdigest()
