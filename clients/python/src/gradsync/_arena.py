"""Daemon-owned memory, mapped into this process.

The mapping is made by hand instead of by `mmap.mmap`: that one keeps a copy of the descriptor for its whole life, which
a forked data loader would inherit, and can be closed under a live view, which crashes. Here the mapping ends when the
last view is gone, and only in the process that made it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import weakref
from typing import Any

from .errors import ConnectionLost, InsufficientMemory, ProtocolError, error_from_wire, local_error

__all__ = ["Arena", "fetch_fd", "map_arena"]

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 1, 2, 0x20, 0x4000, 0x100000
_MADV_DONTFORK, _MADV_POPULATE_WRITE = 10, 23
_PAGE = 4096
_ANSWER_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value


class Arena:
    """One mapping; `memory` and every slice of it keep it alive."""

    __slots__ = ("__weakref__", "address", "memory", "size_bytes")

    def __init__(self, memory: memoryview, address: int) -> None:
        self.memory = memory
        self.address = address
        self.size_bytes = memory.nbytes


_live: weakref.WeakSet[Arena] = weakref.WeakSet()


def fetch_fd(fd_socket_path: str, token: str, timeout: float) -> int:
    """Fetches the descriptor that `token` stands for.

    Raises:
        RpcError: the daemon refused it.
        ConnectionLost: the fd socket did not answer.
        ProtocolError: the answer was not the agreed one.
    """
    answer = b""
    fds: list[int] = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            sock.connect(fd_socket_path)
            sock.sendall(token.encode("ascii") + b"\n")
            while not answer.endswith(b"\n") and len(answer) < _ANSWER_BYTES:
                data, new, _, _ = socket.recv_fds(sock, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                fds += new
                if not data:
                    break
                answer += data
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise ConnectionLost(
            f"the fd socket {fd_socket_path} did not answer ({error}); it belongs beside the daemon's socket: "
            "if the daemon runs in a container, mount the folder that holds both"
        ) from error
    try:
        wire: Any = json.loads(answer or b"null")
    except ValueError:
        wire = None
    if isinstance(wire, dict) and "error" in wire:
        for fd in fds:
            os.close(fd)
        raise error_from_wire(wire["error"])
    if not isinstance(wire, dict) or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise ProtocolError(
            f"the fd socket {fd_socket_path} answered {answer[:200]!r} with {len(fds)} descriptors instead of one; "
            "is something else listening there?"
        )
    return fds[0]


def map_arena(fd: int, size_bytes: int) -> Arena:
    """Maps and populates the arena, and closes `fd`.

    Raises:
        InsufficientMemory: the machine or this process's cgroup cannot give the pages.
    """
    try:
        address = _libc.mmap(None, size_bytes, _PROT_READ | _PROT_WRITE, _MAP_SHARED, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise _insufficient(size_bytes, "mmap", ctypes.get_errno())
    finally:
        os.close(fd)
    _libc.madvise(address, size_bytes, _MADV_DONTFORK)
    # A subclass, because instances of plain ctypes arrays take no weak reference.
    mapping_type: Any = type("ArenaMapping", (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": size_bytes})
    mapping = mapping_type.from_address(address)
    finalizer = weakref.finalize(mapping, _unmap, address, size_bytes, os.getpid())
    finalizer.atexit = False  # type: ignore[misc]  # tensors may live longer than the interpreter's exit handlers
    arena = Arena(memoryview(mapping).cast("B"), address)
    _populate(arena)
    _live.add(arena)
    return arena


def _populate(arena: Arena) -> None:
    # Touching the pages here charges them to the trainer's cgroup, and finds out now whether they can be had.
    if _libc.madvise(arena.address, arena.size_bytes, _MADV_POPULATE_WRITE) == 0:
        return
    error = ctypes.get_errno()
    if error != errno.EINVAL:
        raise _insufficient(arena.size_bytes, "populating the pages", error)
    pages = arena.memory[::_PAGE]  # a kernel before 5.14: the memory is new, so that zeros change nothing
    pages[:] = bytes(len(pages))


def _insufficient(size_bytes: int, what: str, error: int) -> Exception:
    return local_error(
        InsufficientMemory,
        f"{what} of an arena of {size_bytes} bytes failed: {os.strerror(error)}",
        "raise the memory limit of this process's cgroup (and the size of /dev/shm or tmpfs limits of a container), "
        "or declare fewer or narrower tensors",
    )


def _unmap(address: int, size_bytes: int, pid: int) -> None:
    # In a forked child the range is not mapped, or is somebody else's by now.
    if os.getpid() == pid:
        _libc.munmap(address, size_bytes)


def _fence_in_child() -> None:
    # The child has a hole where each arena was; filling it makes a stale view fault instead of reading strange memory.
    for arena in list(_live):
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
        _libc.mmap(arena.address, arena.size_bytes, _PROT_NONE, flags, -1, 0)


os.register_at_fork(after_in_child=_fence_in_child)
