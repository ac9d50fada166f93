"""The CUDA driver through ctypes, as the client of gradsync will use it: memory, its range, and its IPC handle."""

from __future__ import annotations

import ctypes
import signal
from dataclasses import dataclass

SUCCESS = 0
LAZY_ENABLE_PEER_ACCESS = 1
IS_LEGACY_CUDA_IPC_CAPABLE = 10
PR_SET_PDEATHSIG = 1
# The numbers of cuda.h for memory that is created and mapped in two steps.
PINNED, ON_DEVICE, POSIX_DESCRIPTOR, READ_WRITE, MINIMUM = 1, 1, 1, 3, 0


def die_with_parent() -> None:
    """A process that hangs in the driver must not outlive the one that would have noticed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: 64 opaque bytes, passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of a device, which can be exported as a descriptor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


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

    def properties(self, device: int = 0) -> AllocationProperties:
        return AllocationProperties(
            type=PINNED, handle_types=POSIX_DESCRIPTOR, location=Location(type=ON_DEVICE, id=device)
        )

    def granularity(self) -> int:
        size = ctypes.c_size_t()
        properties = self.properties()
        self.check("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(properties), MINIMUM)
        return size.value

    def create(self, size: int) -> int:
        """Memory without an address; `size`: a multiple of the granularity."""
        memory = ctypes.c_uint64()
        properties = self.properties()
        no_flags = ctypes.c_uint64(0)
        self.check("cuMemCreate", ctypes.byref(memory), ctypes.c_size_t(size), ctypes.byref(properties), no_flags)
        return memory.value

    def export_descriptor(self, memory: int) -> int:
        descriptor = ctypes.c_int(-1)
        no_flags = ctypes.c_uint64(0)
        self.check(
            "cuMemExportToShareableHandle",
            ctypes.byref(descriptor),
            ctypes.c_uint64(memory),
            POSIX_DESCRIPTOR,
            no_flags,
        )
        return descriptor.value

    def import_descriptor(self, descriptor: int) -> int:
        memory = ctypes.c_uint64()
        by_value = ctypes.c_void_p(descriptor)
        self.check("cuMemImportFromShareableHandle", ctypes.byref(memory), by_value, POSIX_DESCRIPTOR)
        return memory.value

    def map(self, memory: int, size: int) -> int:
        """Gives it an address, at which the device may read and write."""
        address, whole, zero = ctypes.c_uint64(), ctypes.c_size_t(size), ctypes.c_uint64(0)
        self.check("cuMemAddressReserve", ctypes.byref(address), whole, ctypes.c_size_t(0), zero, zero)
        self.check("cuMemMap", address, whole, ctypes.c_size_t(0), ctypes.c_uint64(memory), zero)
        access = Access(location=Location(type=ON_DEVICE, id=0), flags=READ_WRITE)
        self.check("cuMemSetAccess", address, whole, ctypes.byref(access), ctypes.c_size_t(1))
        return address.value

    def unmap(self, address: int, memory: int, size: int) -> None:
        self.check("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))
        self.check("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(size))
        self.check("cuMemRelease", ctypes.c_uint64(memory))

    def close(self, address: int) -> None:
        self.check("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.check("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def write(self, address: int, content: bytes) -> None:
        self.check("cuMemcpyHtoD_v2", ctypes.c_uint64(address), content, ctypes.c_size_t(len(content)))
