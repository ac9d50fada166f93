"""Names of jobs that people can read: `train.py@host-3f2a`."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Sequence

__all__ = ["job_name"]

_SCRIPT, _HOST = 40, 20  # characters of up to 4 bytes: the daemon takes names of up to 256 bytes
_process = secrets.token_hex(8)


def job_name(shared: str | None, argv: Sequence[str] | None = None, host: str | None = None) -> str:
    """Script, host and four digits: of `shared`, which all ranks have and no other run; else of this process."""
    argv = sys.argv if argv is None else argv
    host = socket.gethostname() if host is None else host
    of_run = f"{os.getpid()} {_process}" if shared is None else shared
    digits = hashlib.sha256(of_run.encode("utf-8", "surrogateescape")).hexdigest()[:4]
    return f"{_readable(_script(argv))[:_SCRIPT]}@{_readable(_short(host))[:_HOST]}-{digits}"


def _short(host: str) -> str:
    """Without the domain; an IPv4 address has none."""
    return host if host.replace(".", "").isdigit() else host.split(".")[0]


def _script(argv: Sequence[str]) -> str:
    path = argv[0] if argv else ""
    if os.path.basename(path) == "__main__.py":  # python -m package
        path = os.path.dirname(path)
    name = os.path.basename(path)
    return "python" if name in ("", "-c", "-m", "-") else name


def _readable(text: str) -> str:
    """Without what the daemon refuses in texts, and without spaces."""
    return "".join(char if char.isprintable() and not char.isspace() else "-" for char in text) or "-"
