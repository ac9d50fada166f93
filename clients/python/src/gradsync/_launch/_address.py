"""Where a daemon may be listening. Addresses are plain paths or `unix:/path`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gradsync.errors import UsageError

from ._places import socket_places

__all__ = ["candidates", "fd_socket_path", "parse_address"]

_PATH_BYTES = 107  # sizeof(sockaddr_un.sun_path) - 1


def parse_address(address: str, origin: str) -> str:
    """The socket path of an address.

    Raises:
        UsageError: it names no unix socket.
    """
    path = address.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path or ("://" in path) or (":" in path and "/" not in path):
        raise UsageError(
            f"{origin} {address!r} names no unix socket; training needs one: give a path or unix:/path/to/gradsync.sock"
        )
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise UsageError(
            f"{origin} {path!r} is longer than the {_PATH_BYTES} bytes of a socket path; choose a shorter one"
        )
    return path


def candidates(address: str | os.PathLike[str] | None, environ: Mapping[str, str] | None = None) -> list[str]:
    """Paths to try, in order; a given address or $GRADSYNC_ADDRESS stands alone."""
    environ = os.environ if environ is None else environ
    if address is not None:
        return [parse_address(os.fspath(address), "address")]
    from_environment = environ.get("GRADSYNC_ADDRESS")
    if from_environment:
        return [parse_address(from_environment, "GRADSYNC_ADDRESS")]
    return socket_places(environ, os.geteuid(), _may_write)


def _may_write(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def fd_socket_path(path: str) -> str:
    """The second socket, which hands out descriptors."""
    return path.removesuffix(".sock") + ".fd.sock"
