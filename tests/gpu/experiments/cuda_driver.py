"""The CUDA driver through ctypes, as the client of gradsync will use it: memory, its range, and its IPC handle."""

from __future__ import annotations

import ctypes
import signal
from dataclasses import dataclass

SUCCESS = 0
LAZY_ENABLE_PEER_ACCESS = 1
IS_LEGACY_CUDA_IPC_CAPABLE = 10
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """A process that hangs in the driver must not outlive the one that would have noticed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: 64 opaque bytes, passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class DriverError(RuntimeError):
    """A call of the driver that failed, with its result by name."""


@dataclass(frozen=True, slots=True)
class Range:
    base: int
    bytes: int


class Driver:
    """Raises DriverError from every call that fails, OSError where there is no driver."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)

    def call(self, function: str, *arguments: object) -> int:
        return int(getattr(self._library, function)(*arguments))

    def name(self, result: int) -> str:
        text = ctypes.c_char_p()
        if self.call("cuGetErrorName", result, ctypes.byref(text)) != SUCCESS or text.value is None:
            return f"CUresult {result}"
        return f"{text.value.decode()} ({result})"

    def check(self, function: str, *arguments: object) -> None:
        result = self.call(function, *arguments)
        if result != SUCCESS:
            raise DriverError(f"{function}: {self.name(result)}")

    def enter_primary_context(self, device: int = 0) -> None:
        handle = ctypes.c_int()
        context = ctypes.c_void_p()
        self.check("cuDeviceGet", ctypes.byref(handle), device)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.check("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.check("cuMemFree_v2", ctypes.c_uint64(address))

    def range_of(self, address: int) -> Range:
        base = ctypes.c_uint64()
        size = ctypes.c_size_t()
        self.check("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return Range(base.value, size.value)

    def legacy_ipc_capable(self, address: int) -> bool:
        capable = ctypes.c_int()
        attribute = IS_LEGACY_CUDA_IPC_CAPABLE
        self.check("cuPointerGetAttribute", ctypes.byref(capable), attribute, ctypes.c_uint64(address))
        return capable.value != 0

    def export(self, address: int) -> bytes:
        handle = IpcHandle()
        self.check("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        address = ctypes.c_uint64()
        by_value = IpcHandle.from_buffer_copy(handle)
        self.check("cuIpcOpenMemHandle_v2", ctypes.byref(address), by_value, ctypes.c_uint(LAZY_ENABLE_PEER_ACCESS))
        return address.value

    def close(self, address: int) -> None:
        self.check("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.check("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw
