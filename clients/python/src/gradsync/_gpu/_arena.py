"""The arena of a rank whose gradients lie on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradsync._step._buffer import Buffer
from gradsync.errors import UsageError

from ._memory import GpuMemory, next_generation

if TYPE_CHECKING:
    import torch

__all__ = ["GpuArena", "GpuBuffer"]


class GpuBuffer(Buffer):
    """Memory of a tensor on a GPU."""

    __slots__ = ("_bytes",)

    def __init__(self, data: torch.Tensor, name: str, shape: tuple[int, ...], dtype: str, offset: int) -> None:
        super().__init__(memoryview(b""), name, shape, dtype, offset)
        self._bytes = data

    @property
    def nbytes(self) -> int:
        """Bytes, without padding."""
        return self._bytes.numel()

    def memoryview(self) -> memoryview:
        """Not on a GPU."""
        raise UsageError(f"{self.name!r} lies on a GPU, which Python cannot read; use torch()")

    def numpy(self) -> Any:
        """Not on a GPU."""
        raise UsageError(f"{self.name!r} lies on a GPU, which numpy cannot read; use torch()")

    def torch(self) -> torch.Tensor:
        """A contiguous tensor over the same memory."""
        import torch

        return self._bytes.view(getattr(torch, self.dtype)).reshape(self.shape)


class GpuArena:
    """Memory of this process that the worker of its GPU maps. Freed with the last view of it."""

    def __init__(self, size_bytes: int, ordinal: int) -> None:
        self._memory = GpuMemory(size_bytes, ordinal)
        self._bytes = self._memory.tensor()
        self.size_bytes = size_bytes

    @property
    def memory(self) -> memoryview:
        """Not on a GPU."""
        raise UsageError("these gradients lie on a GPU, which Python cannot read; use input(name).torch()")

    def registration(self) -> dict[str, Any]:
        """The parameters of buffers.register, with a generation that no registration before it had."""
        exported = self._memory.export()
        return {
            "transport": "cuda_ipc",
            "device": self._memory.uuid,
            "handle": exported.handle.hex(),
            "base": exported.base,
            "allocation_bytes": exported.nbytes,
            "offset": self._memory.address - exported.base,
            "bytes": self.size_bytes,
            "generation": next_generation(),
        }

    def view(self, name: str, shape: tuple[int, ...], dtype: str, offset: int, nbytes: int) -> GpuBuffer:
        """The memory of a tensor."""
        return GpuBuffer(self._bytes[offset : offset + nbytes], name, shape, dtype, offset)

    def wait_written(self) -> None:
        """Waits until the calling thread's current stream has written what it was given."""
        self._memory.wait()
