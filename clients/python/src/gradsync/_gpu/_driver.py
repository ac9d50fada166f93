"""The calls of CUDA's driver that memory for gradients needs, by ctypes on `libcuda.so.1`.

They work in the primary context of a device, which is torch's, and leave the thread's current context as it was. Any
thread may call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import uuid
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from gradsync._wire_errors import local_error
from gradsync.errors import ImportRefused, InsufficientMemory, NoGpu, UsageError

__all__ = ["Allocation", "Driver", "driver"]

HANDLE_BYTES = 64
_OUT_OF_MEMORY = 2
_IS_LEGACY_CUDA_IPC_CAPABLE = 10
_ALIGNMENT = 16  # of the vectors that the worker's kernels load
_LIBRARY = "GRADSYNC_LIBCUDA"
_HINT = "torch.cuda.is_available() says whether this process sees a GPU"
_SHARED_HINT = (
    "memory of expandable segments, pools and managed memory is not shared: use gradsync.alloc_grad_buffer(), or unset "
    "expandable_segments in PYTORCH_CUDA_ALLOC_CONF"
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation that another process can map: its address here, its size, and its handle."""

    base: int
    nbytes: int
    handle: bytes


class Driver:
    """The loaded library.

    Raises:
        NoGpu: there is no driver, or it sees no device.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise local_error(NoGpu, f"the driver of NVIDIA cannot be loaded: {error}", _HINT) from error
        self._calls = {name: self._declared(name, *arguments) for name, arguments in _SIGNATURES.items()}
        #: Where the memory is, as torch names devices. An emulation, for tests, has it in memory of the CPU.
        self.device_type = "cpu" if hasattr(self._library, "gradsync_emulated_driver") else "cuda"
        self._must("cuInit", 0, about=NoGpu)

    def uuids(self) -> list[str]:
        """The UUIDs of all devices of this process, which CUDA_VISIBLE_DEVICES may have chosen."""
        count = c_int()
        self._must("cuDeviceGetCount", byref(count), about=NoGpu)
        return [self.uuid(ordinal) for ordinal in range(count.value)]

    def uuid(self, ordinal: int) -> str:
        """The UUID of a device of this process, "GPU-" and 36 characters."""
        text = (c_ubyte * 16)()
        self._must("cuDeviceGetUuid_v2", byref(text), self._device(ordinal), about=NoGpu)
        return f"GPU-{uuid.UUID(bytes=bytes(text))}"

    def allocate(self, ordinal: int, nbytes: int) -> int:
        """Memory of its own, of zeros; its address.

        Raises:
            InsufficientMemory: the device has no more.
        """
        address = c_uint64()
        with self._context(ordinal):
            self._must("cuMemAlloc_v2", byref(address), nbytes)
            try:
                self._must("cuMemsetD8_v2", address, 0, nbytes)
            except BaseException:
                self._calls["cuMemFree_v2"](address)
                raise
        return address.value

    def free(self, ordinal: int, address: int) -> None:
        """Gives it back; another process that maps it keeps it alive."""
        with self._context(ordinal):
            self._must("cuMemFree_v2", c_uint64(address))

    def export(self, ordinal: int, address: int) -> Allocation:
        """The allocation that an address lies in.

        Raises:
            ImportRefused: it is of a kind that CUDA does not share.
            UsageError: the worker's kernels cannot begin at this address.
        """
        base, nbytes, handle, capable = c_uint64(), c_size_t(), (c_ubyte * HANDLE_BYTES)(), c_int()
        asked = (byref(capable), _IS_LEGACY_CUDA_IPC_CAPABLE, c_uint64(address))
        with self._context(ordinal):
            self._must("cuPointerGetAttribute", *asked, about=ImportRefused)
            if not capable.value:
                raise local_error(ImportRefused, f"CUDA does not share the memory at {address:#x}", _SHARED_HINT)
            self._must("cuMemGetAddressRange_v2", byref(base), byref(nbytes), c_uint64(address), about=ImportRefused)
            offset = address - base.value
            if offset % _ALIGNMENT != 0:
                raise UsageError(
                    f"memory begins {offset} bytes into its allocation; that has to be a multiple of {_ALIGNMENT}"
                )
            self._must("cuIpcGetMemHandle", byref(handle), base, about=ImportRefused)
        return Allocation(base.value, nbytes.value, bytes(handle))

    def synchronize(self, ordinal: int) -> None:
        """Waits for everything that this process has enqueued on the device."""
        with self._context(ordinal):
            self._must("cuCtxSynchronize")

    @contextlib.contextmanager
    def _context(self, ordinal: int) -> Iterator[None]:
        self._must("cuCtxPushCurrent_v2", self._primary(ordinal))
        try:
            yield
        finally:
            self._must("cuCtxPopCurrent_v2", byref(c_void_p()))

    @functools.lru_cache(maxsize=64)  # noqa: B019 - there is one driver, and it lives as long as the process
    def _primary(self, ordinal: int) -> c_void_p:
        context = c_void_p()
        self._must("cuDevicePrimaryCtxRetain", byref(context), self._device(ordinal), about=NoGpu)
        return context

    def _device(self, ordinal: int) -> c_int:
        device = c_int()
        self._must("cuDeviceGet", byref(device), ordinal, about=NoGpu)
        return device

    def _must(self, name: str, *arguments: Any, about: type[NoGpu] | type[ImportRefused] | None = None) -> None:
        code = self._calls[name](*arguments)
        if code == 0:
            return
        text = c_char_p()
        self._calls["cuGetErrorName"](code, byref(text))
        said = f"{name}: {(text.value or b'unknown').decode()} (CUDA error {code})"
        if code == _OUT_OF_MEMORY:
            raise local_error(InsufficientMemory, said, "free memory of the GPU")
        if about is NoGpu:
            raise local_error(NoGpu, said, _HINT)
        if about is ImportRefused:
            raise local_error(ImportRefused, said, _SHARED_HINT)
        raise RuntimeError(f"{said}; the GPU or this process's context failed: start the process again")

    def _declared(self, name: str, *arguments: Any) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise local_error(NoGpu, f"{self._library._name} has no {name}: it is too old", _HINT) from None
        function.argtypes, function.restype = arguments, c_int
        return function


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuIpcGetMemHandle": (c_void_p, c_uint64),
}


@functools.lru_cache(maxsize=1)
def driver() -> Driver:
    """The driver of this process.

    Raises:
        NoGpu: there is none.
    """
    return Driver(os.environ.get(_LIBRARY) or "libcuda.so.1")
