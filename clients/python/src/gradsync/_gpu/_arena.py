"""The arena of a rank whose gradients lie on a GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gradsync._step._buffer import Buffer
from gradsync.errors import NoGpu, UsageError

from ._driver import driver
from ._memory import alloc_grad_buffer, next_generation, ordinal_of

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

    def __init__(self, memory: torch.Tensor, ordinal: int, size_bytes: int) -> None:
        """`memory`: a row of bytes on the GPU of that number, of which the arena takes the first `size_bytes`."""
        self._bytes = memory
        self._ordinal = ordinal
        self.size_bytes = size_bytes

    @classmethod
    def of(cls, size_bytes: int, device: Any, memory: torch.Tensor | None) -> GpuArena:
        """An arena in `memory` that the caller allocated, else in new memory of `device`.

        Raises:
            UsageError: `device` names no GPU or another one than that of `memory`, which cannot be an arena perhaps.
            NoGpu: this process sees no such GPU.
            InsufficientMemory: it has no more memory.
        """
        if memory is None:
            ordinal = ordinal_of(device)
            return cls(alloc_grad_buffer(size_bytes, ordinal), ordinal, size_bytes)
        _check_memory(memory)
        import torch

        data = memory.detach().view(-1).view(torch.uint8)
        held, named = memory.device.index, None if str(device) == "cpu" else ordinal_of(device)
        ordinal = held if held is not None else named or 0  # an emulation's tensors name none
        if named is not None and named != ordinal:
            raise UsageError(f"memory lies on cuda:{ordinal}, and device names cuda:{named}; leave device out")
        if data.numel() < size_bytes:
            raise UsageError(
                f"memory has {data.numel()} bytes, and these tensors take {size_bytes}: each is rounded up to 64, and "
                "so is each output of a scattered one"
            )
        return cls(data, ordinal, size_bytes)

    @property
    def memory(self) -> memoryview:
        """Not on a GPU."""
        raise UsageError("these gradients lie on a GPU, which Python cannot read; use input(name).torch()")

    def tensor(self) -> torch.Tensor:
        """All bytes of the memory that it is in."""
        return self._bytes

    def registration(self) -> dict[str, Any]:
        """The parameters of buffers.register, with a generation that no registration before it had.

        Raises:
            ImportRefused: CUDA does not share this memory.
            UsageError: the worker's kernels cannot begin where it begins.
        """
        address = self._bytes.data_ptr()
        exported = driver().export(self._ordinal, address)
        return {
            "transport": "cuda_ipc",
            "device": driver().uuid(self._ordinal),
            "handle": exported.handle.hex(),
            "base": exported.base,
            "allocation_bytes": exported.nbytes,
            "offset": address - exported.base,
            "bytes": self.size_bytes,
            "generation": next_generation(),
        }

    def view(self, name: str, shape: tuple[int, ...], dtype: str, offset: int, nbytes: int) -> GpuBuffer:
        """The memory of a tensor."""
        return GpuBuffer(self._bytes[offset : offset + nbytes], name, shape, dtype, offset)

    def wait_written(self) -> None:
        """Waits for what the calling thread's current stream has enqueued; in an emulation, for the whole device."""
        if driver().device_type == "cuda":
            import torch

            torch.cuda.current_stream(self._ordinal).synchronize()
        else:
            driver().synchronize(self._ordinal)


def _check_memory(memory: torch.Tensor) -> None:
    """Refuses what is no tensor on a GPU, and one whose elements do not lie side by side."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(memory, torch.Tensor):
        raise UsageError(f"memory is of type {type(memory).__name__}; give a torch.Tensor on a GPU")
    if memory.device.type != _device_type():
        raise UsageError(
            f"memory lies on {memory.device}, and an arena can be given on a GPU only: leave memory out, for arenas of "
            "CPUs come from the daemon"
        )
    if not memory.is_contiguous():
        raise UsageError(
            f"memory is not contiguous: its shape is {tuple(memory.shape)} and its strides are {memory.stride()}; "
            "give a tensor without gaps, such as torch.empty(bytes, dtype=torch.uint8, device='cuda')"
        )


def _device_type() -> str:
    try:
        return driver().device_type
    except NoGpu:
        return "cuda"  # which no tensor of this process lies on then
