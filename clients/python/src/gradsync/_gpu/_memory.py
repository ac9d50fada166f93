"""Memory of a GPU that holds gradients: an allocation of its own, which the daemon's worker maps."""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

from gradsync.errors import UsageError

from ._driver import driver

if TYPE_CHECKING:
    import torch

__all__ = ["GpuMemory", "alloc_grad_buffer", "next_generation", "ordinal_of"]

_PIECE = 2 << 20  # what the driver shares: a handle of less would show other memory of this process
_generations = itertools.count(1)


def next_generation() -> int:
    """A number that no registration of this process had: what CUDA freed meanwhile is told from what came after it."""
    return next(_generations)


class GpuMemory:
    """Zeros on a GPU, in multiples of 2 MiB; freed with the last tensor over them.

    Raises:
        NoGpu: this process sees no such GPU.
        InsufficientMemory: it has no more memory.
    """

    def __init__(self, nbytes: int, ordinal: int) -> None:
        calls = driver()
        self.ordinal = ordinal
        self.nbytes = max(1, -(-nbytes // _PIECE)) * _PIECE
        self.address = calls.allocate(ordinal, self.nbytes)
        self._device_type = calls.device_type
        end = weakref.finalize(self, calls.free, ordinal, self.address)
        end.atexit = False  # type: ignore[misc]  # the driver may be gone by then

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What torch and others make an array of, which keeps this memory alive."""
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self) -> torch.Tensor:
        """The bytes."""
        import torch

        if self._device_type == "cuda":
            return torch.as_tensor(self, device=f"cuda:{self.ordinal}")
        memory = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        memory._owner = self  # type: ignore[attr-defined]  # a tensor holds what it was made of
        return torch.frombuffer(memory, dtype=torch.uint8)


def ordinal_of(device: Any) -> int:
    """The number of a GPU in this process: of "cuda", "cuda:1", a torch.device or an int.

    Raises:
        UsageError: it names no GPU.
    """
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    named = re.fullmatch(r"cuda(?::([0-9]+))?", text)
    if named is None:
        raise UsageError(f"device is {text!r}; a GPU is named cuda, or cuda:1")
    if named[1]:
        return int(named[1])
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0


def alloc_grad_buffer(nbytes: int, device: Any = "cuda") -> torch.Tensor:
    """Memory for gradients that the sidecar can map, as a tensor of bytes: zeros, rounded up to a multiple of 2 MiB.

    It comes from the driver and not from torch's allocator, so that no neighbour is shared with it, and settings such
    as expandable_segments do not matter. `tensor[:n].view(torch.bfloat16)` makes gradients of it. It is freed with the
    last tensor over it.

    Raises:
        UsageError: `device` names no GPU, or `nbytes` is negative.
        NoGpu: this process sees no such GPU.
        InsufficientMemory: it has no more memory.
    """
    if nbytes < 0:
        raise UsageError(f"nbytes is {nbytes}, it cannot be negative")
    return GpuMemory(nbytes, ordinal_of(device)).tensor()
