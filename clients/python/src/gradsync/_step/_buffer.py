"""Views of arena memory. A view keeps the mapping alive by itself: nothing here is ever unmapped under a live view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import torch

__all__ = ["Buffer"]

_NUMPY_DTYPES = {"float32": "float32", "float16": "float16", "float64": "float64", "bfloat16": "uint16"}


class Buffer:
    """Memory of a tensor on this rank: what backward writes or the result of finish; one memory unless scattered."""

    __slots__ = ("_memory", "dtype", "name", "offset", "shape")

    def __init__(self, memory: memoryview, name: str, shape: tuple[int, ...], dtype: str, offset: int) -> None:
        self._memory = memory
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.offset = offset

    @property
    def nbytes(self) -> int:
        """Bytes, without padding."""
        return self._memory.nbytes

    def memoryview(self) -> memoryview:
        """The bytes, writable."""
        return self._memory

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """An array over the same memory; bfloat16 comes as its bits in uint16."""
        import numpy

        dtype = numpy.dtype(_NUMPY_DTYPES[self.dtype])
        if self.nbytes == 0:
            return numpy.empty(self.shape, dtype)
        return numpy.frombuffer(self._memory, dtype).reshape(self.shape)

    def torch(self) -> torch.Tensor:
        """A contiguous tensor over the same memory."""
        import torch

        dtype = getattr(torch, self.dtype)
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype).reshape(self.shape)

    def __repr__(self) -> str:
        return f"Buffer({self.name!r}, shape={self.shape}, dtype={self.dtype!r})"
