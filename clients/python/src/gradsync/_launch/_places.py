"""The usual places of a daemon's socket, and which sockets are connected to.

The daemon has the same order (service/app/config/socket_places.cpp); tests/contract/socket_places.json tests both.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping

from gradsync.errors import ConnectionFailed

from ._connect_errors import foreign_server, not_connected, unsafe

__all__ = ["open_socket", "refuse_place", "socket_places"]

_MACHINE = "/run/gradsync"
_FILE = "gradsync.sock"
_SHORTEST_S = 0.05
_FULL_S = 0.02  # until a full queue of the listener is tried again


def socket_places(environ: Mapping[str, str], uid: int, may_write: Callable[[str], bool]) -> list[str]:
    """A daemon of this user that is told nothing takes the first; clients try them in this order."""
    places: list[str] = []
    of_others: list[str] = []
    (places if uid == 0 or may_write(_MACHINE) else of_others).append(f"{_MACHINE}/{_FILE}")
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        runtime = runtime.rstrip("/") or "/"
        (places if may_write(runtime) else of_others).append(f"{runtime}/gradsync/{_FILE}")
    return [*places, f"{_private_folder(uid)}/{_FILE}", *of_others]


def open_socket(path: str, timeout: float) -> socket.socket:
    """A socket that is connected to `path`.

    Raises:
        ConnectionFailed: with the reason and what to do.
    """
    refuse_place(path)
    timeout = max(timeout, _SHORTEST_S)  # this process may have been stopped until its deadline was over
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                sock.connect(path)
                refuse_foreign_server(sock, path)
                return sock
            except BlockingIOError:  # more wait to be accepted than the kernel keeps
                if time.monotonic() + _FULL_S > deadline:
                    raise
            time.sleep(_FULL_S)
    except OSError as error:
        sock.close()
        raise not_connected(path, timeout, error) from error
    except ConnectionFailed:
        sock.close()
        raise


def refuse_foreign_server(sock: socket.socket, path: str) -> None:
    """Where others own the folder, or may write to it, the one who listens has to be its owner, root or this user.

    Raises:
        ConnectionFailed: a stranger listens there.
    """
    uid = os.geteuid()
    folder = os.path.dirname(os.path.abspath(path))
    try:
        found = os.stat(folder)
    except OSError:  # it may be passed through and not looked at
        return
    if found.st_uid == uid and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    server = _server_uid(sock)
    if server not in (uid, 0, found.st_uid):
        raise foreign_server(path, folder, server, found.st_uid)


def _server_uid(sock: socket.socket) -> int:
    """The effective uid of the process that listened, as the kernel reports it."""
    uid: int = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def refuse_place(path: str, uid: int | None = None) -> None:
    """Refuses a socket in /tmp, where everybody may write, that a stranger could have put there.

    Its folder has to belong to this user or to root; in a folder that others may write to, the socket has to as well.

    Raises:
        ConnectionFailed: "unsafe".
    """
    uid = os.geteuid() if uid is None else uid
    folder = os.path.dirname(os.path.abspath(path))
    with contextlib.suppress(OSError):  # where this process may not even look, connecting fails too
        found = (
            _why_not_private(os.lstat(folder), uid)
            if folder == _private_folder(uid)
            else _stranger(path, folder, os.path.realpath(folder), uid)
        )
        if found is not None:
            raise unsafe(path, folder, found, uid)


def _private_folder(uid: int) -> str:
    return f"/tmp/gradsync-{uid}"


def _why_not_private(found: os.stat_result, uid: int) -> str | None:
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return "is no directory"
    if found.st_uid != uid:
        return f"belongs to uid {found.st_uid}"
    # New folders below an `emptyDir` of a pod with an fsGroup inherit the bit that is taken out here.
    mode = stat.S_IMODE(found.st_mode) & ~stat.S_ISGID
    return None if mode == 0o700 else f"has mode {mode:04o} instead of 0700"


def _stranger(path: str, folder: str, real: str, uid: int) -> str | None:
    if not any(one == "/tmp" or one.startswith("/tmp/") for one in (folder, real)):
        return None
    link, behind = os.lstat(folder), os.lstat(real)
    for found in (link, behind):
        if found.st_uid not in (uid, 0):
            return f"belongs to uid {found.st_uid}"
    if behind.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        owner = os.lstat(path).st_uid
        if owner not in (uid, 0):
            return f"can be written to by others, and the socket belongs to uid {owner}"
    return None
