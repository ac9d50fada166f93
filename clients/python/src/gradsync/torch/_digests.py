"""Digests of weights and layouts, which ranks compare: of equal weights they are equal, whatever computed them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from ._statistics._fingerprints import FINGERPRINT
from ._statistics._measurer import Measurer

__all__ = ["bytes_of", "layout_digest", "weight_digests"]

_FLOATS = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}  # what the kernels know as so many bytes


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in logical order, as a flat uint8 tensor."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def layout_digest(strides: Sequence[int]) -> str:
    return hashlib.blake2b(repr(tuple(strides)).encode(), digest_size=4).hexdigest()


def weight_digests(tensors: Sequence[torch.Tensor]) -> list[str]:
    """One digest per tensor, of dtype, shape and bytes: NaN payloads and the sign of zero count.

    The bytes are read where they are, and 8 bytes per tensor come to the host, in one copy from each device. The digest
    begins with the name of the function, so that ranks that have different ones see that, not different weights.
    """
    bits = [_as_floats(tensor) for tensor in tensors]
    measurer = Measurer([(one.numel(), one.dtype, one.device) for one in bits], math.inf)
    prints = measurer.fingerprints(measurer.arrange(bits, True)).tolist()
    return [_digest(tensor, found) for tensor, found in zip(tensors, prints, strict=True)]


def _as_floats(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as elements of a dtype that the kernels know, or as bytes."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    return real.view(_FLOATS.get(real.element_size(), torch.uint8))


def _digest(tensor: torch.Tensor, found: int) -> str:
    whole = f"{tensor.dtype} {tuple(tensor.shape)} {found % (1 << 64)}"
    return f"{FINGERPRINT}:{hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()}"
