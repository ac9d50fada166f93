"""session.initialize: what client and daemon say of themselves, first of all, on each connection."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsync._launch._connect_errors import version_skew
from gradsync._transport._connection import Ask
from gradsync._version import PROTOCOL, __version__
from gradsync.errors import VersionMismatch

__all__ = ["Welcome", "initialize"]


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the daemon says of itself, and its default deadlines, unless it announces others in its limits."""

    server: dict[str, Any]  # name, version and pid
    incarnation: str
    declare_s: float = 300.0
    first_step_s: float = 1800.0
    step_s: float = 600.0


def initialize(ask: Ask, path: str, client_id: str) -> Welcome:
    """The first request on a connection to the daemon at `path`.

    Raises:
        ConnectionFailed: no answer, or that of another release.
        RpcError: the daemon refused.
    """
    params = {
        "protocol": PROTOCOL,
        "client": {"name": "gradsync-python", "version": __version__},
        "client_id": client_id,
        "pid": os.getpid(),
        "boot_id": _boot_id(),
    }
    try:
        reply = ask("session.initialize", params)
    except VersionMismatch as error:
        raise version_skew(path, error.data.get("server"), error.message) from error
    if reply.get("protocol") != PROTOCOL:
        detail = f"the daemon speaks {reply.get('protocol')!r}, the client {PROTOCOL}"
        raise version_skew(path, reply.get("server"), detail)
    limits = reply.get("limits", {})
    announced = {name: float(limits[name]) for name in ("declare_s", "first_step_s", "step_s") if name in limits}
    return Welcome(dict(reply.get("server", {})), str(reply.get("incarnation", "")), **announced)


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""
