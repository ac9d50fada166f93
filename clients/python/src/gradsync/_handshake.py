"""The first words on a connection, spoken by one thread before anybody else reads or sends on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from websockets.exceptions import ConnectionClosed

from ._socket import open_websocket, version_skew
from ._version import PROTOCOL, __version__
from ._websocket import WebSocket
from ._wire import dump, load, request
from ._wire_errors import error_from_wire
from .errors import ConnectionFailed, VersionMismatch

__all__ = ["Deadlines", "Welcome", "ask", "shake_hands"]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The daemon's defaults, in seconds; it may announce others in its limits."""

    declare_s: float = 300.0
    first_step_s: float = 1800.0
    step_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the daemon says of itself."""

    server: dict[str, Any]
    incarnation: str
    deadlines: Deadlines


def shake_hands(path: str, client_id: str, next_id: Callable[[], int], deadline: float) -> tuple[WebSocket, Welcome]:
    """A new connection on which session.initialize is done.

    Raises:
        ConnectionFailed: with the reason and what to do.
        RpcError: the daemon refused.
    """
    websocket = open_websocket(path, max(0.05, deadline - time.monotonic()))
    params = {
        "protocol": PROTOCOL,
        "client": {"name": "gradsync-python", "version": __version__},
        "client_id": client_id,
        "pid": os.getpid(),
        "boot_id": _boot_id(),
    }
    try:
        reply = ask(websocket, path, next_id(), "session.initialize", dump(params), deadline)
        if reply.get("protocol") != PROTOCOL:
            detail = f"the daemon speaks {reply.get('protocol')!r}, the client {PROTOCOL}"
            raise version_skew(path, reply.get("server"), detail)
    except VersionMismatch as error:
        websocket.dispose()
        raise version_skew(path, error.data.get("server"), error.message) from error
    except BaseException:
        websocket.dispose()
        raise
    limits = reply.get("limits", {})
    announced = {name: float(limits[name]) for name in Deadlines.__slots__ if name in limits}
    return websocket, Welcome(dict(reply.get("server", {})), str(reply.get("incarnation", "")), Deadlines(**announced))


def ask(websocket: WebSocket, path: str, request_id: int, method: str, params: str, deadline: float) -> dict[str, Any]:
    """One request and its result, on a connection that nobody else reads.

    Raises:
        ConnectionFailed: no answer, or none that makes sense.
        RpcError: the daemon answered with an error.
    """
    try:
        websocket.send(request(request_id, method, params))
        while True:
            if not websocket.readable(max(0.0, deadline - time.monotonic())):
                text = f"{path} did not answer {method} in time; the daemon hangs: see its log"
                raise ConnectionFailed("timeout", text, path)
            message = websocket.receive()
            reply = None if message is None else load(message)
            if isinstance(reply, dict) and reply.get("id") == request_id:
                break
    except ConnectionClosed as closed:
        text = f"{path} closed the connection during {method} ({closed}); see the daemon's log"
        raise ConnectionFailed("ending", text, path) from closed
    if "error" in reply:
        raise error_from_wire(reply["error"])
    result = reply.get("result")
    if not isinstance(result, dict):
        text = f"{path} answered {method} with {result!r}; is it a gradsync daemon?"
        raise ConnectionFailed("not_gradsync", text, path)
    return result


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
