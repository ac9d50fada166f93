"""Daemon-owned memory, mapped into this process, and the socket by which its descriptors travel.

An arena keeps its descriptor, so that a restarted daemon can be given it; a forked child, a data loader for instance,
closes it. The mapping is made by hand instead of by `mmap.mmap`, which can be closed under a live view and crashes
then. Here the mapping ends when the last view is gone, and only in the process that made it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import socket
import weakref
from collections.abc import Sequence
from typing import Any

from gradsync._launch._places import refuse_foreign_server, refuse_place
from gradsync._wire_errors import error_from_wire, local_error
from gradsync.errors import ConnectionLost, InsufficientMemory, ProtocolError

from ._buffer import Buffer

__all__ = ["Arena", "fetch_fd", "give_fd", "map_arena", "map_for_reading"]

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
    """One mapping; `memory` and every slice of it keep it alive. `fd` is -1 where it was not kept."""

    __slots__ = ("__weakref__", "address", "fd", "memory", "size_bytes")

    def __init__(self, memory: memoryview, address: int, fd: int) -> None:
        self.memory = memory
        self.address = address
        self.size_bytes = memory.nbytes
        self.fd = fd

    def view(self, name: str, shape: tuple[int, ...], dtype: str, offset: int, nbytes: int) -> Buffer:
        """The memory of a tensor."""
        return Buffer(self.memory[offset : offset + nbytes], name, shape, dtype, offset)


_live: weakref.WeakSet[Arena] = weakref.WeakSet()


def fetch_fd(fd_socket_path: str, token: str, timeout: float) -> int:
    """Fetches the descriptor that `token` stands for.

    Raises:
        RpcError: the daemon refused it.
        ConnectionLost: the fd socket did not answer.
        ProtocolError: the answer was not the agreed one.
    """
    return _exchange(fd_socket_path, token, [], timeout, 1)[0]


def give_fd(fd_socket_path: str, token: str, fd: int, timeout: float) -> None:
    """Hands over the descriptor that the daemon expects with `token`; raises as `fetch_fd` does."""
    _exchange(fd_socket_path, token, [fd], timeout, 0)


def _exchange(fd_socket_path: str, token: str, given: Sequence[int], timeout: float, wanted: int) -> list[int]:
    answer = b""
    fds: list[int] = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            refuse_place(fd_socket_path)
            sock.connect(fd_socket_path)
            refuse_foreign_server(sock, fd_socket_path)  # before it is given an arena, or gives one
            line = token.encode("ascii") + b"\n"
            sent = socket.send_fds(sock, [line], given)
            if sent < len(line):
                sock.sendall(line[sent:])
            while not answer.endswith(b"\n") and len(answer) < _ANSWER_BYTES:
                data, new, _, _ = socket.recv_fds(sock, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                fds += new
                if not data:
                    break
                answer += data
        _check_answer(fd_socket_path, answer)
        if len(fds) != wanted:
            raise _strange(fd_socket_path, answer, f"{len(fds)} descriptors instead of {wanted}")
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if isinstance(error, OSError):
            raise ConnectionLost(
                f"the fd socket {fd_socket_path} did not answer ({error}); it belongs beside the daemon's socket: "
                "if the daemon runs in a container, mount the folder that holds both"
            ) from error
        raise
    return fds


def _check_answer(fd_socket_path: str, answer: bytes) -> None:
    try:
        wire: Any = json.loads(answer or b"null")
    except ValueError:
        wire = None
    if isinstance(wire, dict) and "error" in wire:
        raise error_from_wire(wire["error"])
    if not isinstance(wire, dict):
        raise _strange(fd_socket_path, answer, "no object")


def _strange(fd_socket_path: str, answer: bytes, what: str) -> ProtocolError:
    return ProtocolError(
        f"the fd socket {fd_socket_path} answered {answer[:200]!r} with {what}; is something else listening there?"
    )


def map_arena(fd: int, size_bytes: int) -> Arena:
    """Maps and populates the arena, and takes over `fd`.

    Raises:
        InsufficientMemory: the machine or this process's cgroup cannot give the pages.
    """
    arena = _map(fd, size_bytes, _PROT_READ | _PROT_WRITE, keep=True)
    _populate(arena)
    return arena


def map_for_reading(fd: int, size_bytes: int) -> Arena:
    """Maps memory that only the daemon may write, and closes `fd`.

    Raises:
        InsufficientMemory: the process may not map more.
    """
    return _map(fd, size_bytes, _PROT_READ, keep=False)


def _map(fd: int, size_bytes: int, protection: int, *, keep: bool) -> Arena:
    address = _libc.mmap(None, size_bytes, protection, _MAP_SHARED, fd, 0)
    failure = ctypes.get_errno()
    failed = address is None or address == _MAP_FAILED
    if failed or not keep:
        os.close(fd)
        fd = -1
    if failed:
        raise _insufficient(size_bytes, "mmap", failure)
    _libc.madvise(address, size_bytes, _MADV_DONTFORK)
    mapping = _mapping_type(size_bytes).from_address(address)
    finalizer = weakref.finalize(mapping, _unmap, address, size_bytes, os.getpid())
    finalizer.atexit = False  # type: ignore[misc]  # tensors may live longer than the interpreter's exit handlers
    memory = memoryview(mapping).cast("B")
    arena = Arena(memory if protection & _PROT_WRITE else memory.toreadonly(), address, fd)
    if keep:
        weakref.finalize(arena, _close, fd, os.getpid())
    _live.add(arena)
    return arena


@functools.lru_cache(maxsize=16)  # a class is garbage that only the collector finds
def _mapping_type(size_bytes: int) -> Any:
    # A subclass, because instances of plain ctypes arrays take no weak reference.
    return type("ArenaMapping", (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": size_bytes})


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
    # In a forked child the range is not mapped, or is in use for something else by now.
    if os.getpid() == pid:
        _libc.munmap(address, size_bytes)


def _close(fd: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has closed its own
        os.close(fd)


def _fence_in_child() -> None:
    # The child has a hole where each arena was; filling it makes a stale view fault instead of reading strange memory.
    for arena in list(_live):
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
        _libc.mmap(arena.address, arena.size_bytes, _PROT_NONE, flags, -1, 0)
        if arena.fd >= 0:
            os.close(arena.fd)
            arena.fd = -1


os.register_at_fork(after_in_child=_fence_in_child)
