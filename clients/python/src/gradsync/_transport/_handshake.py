"""Opens a connection to a daemon: the socket, its upgrade to a WebSocket, and session.initialize.

One thread does all of it, before any other thread reads or sends on the connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gradsync._launch._connect_errors import ended, not_gradsync, refused, version_skew
from gradsync._launch._places import open_socket
from gradsync._version import PROTOCOL, SUBPROTOCOL, __version__
from gradsync._wire import load, request
from gradsync._wire_errors import error_from_wire
from gradsync.errors import ConnectionFailed, VersionMismatch

from ._websocket import WebSocket

__all__ = ["Welcome", "ask", "shake_hands"]

_MESSAGE_BYTES = 1 << 20
_SHORTEST_S = 0.05  # even a caller without patience gives a daemon so long
_URI = parse_uri("ws://localhost/")


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the daemon says of itself, and its default deadlines, unless it announces others in its limits."""

    server: dict[str, Any]  # name, version and pid
    incarnation: str
    declare_s: float = 300.0
    first_step_s: float = 1800.0
    step_s: float = 600.0


def shake_hands(path: str, client_id: str, request_id: int, deadline: float) -> tuple[WebSocket, Welcome]:
    """A new connection on which session.initialize is done.

    Raises:
        ConnectionFailed: with the reason and what to do.
        RpcError: the daemon refused.
    """
    deadline = max(deadline, time.monotonic() + _SHORTEST_S)
    protocol = ClientProtocol(_URI, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=_MESSAGE_BYTES)
    websocket = WebSocket(open_socket(path, deadline - time.monotonic()), protocol)
    try:
        _upgrade(websocket, protocol, path, deadline)
        return websocket, _initialize(websocket, path, client_id, request_id, deadline)
    except BaseException:
        websocket.dispose()
        raise


def _upgrade(websocket: WebSocket, protocol: ClientProtocol, path: str, deadline: float) -> None:
    hello = protocol.connect()
    hello.headers["User-Agent"] = f"gradsync-python/{__version__}"
    protocol.send_request(hello)
    websocket.pump()
    while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
        _wait(websocket, path, "the upgrade", deadline)
        websocket.pump()
    failure = protocol.handshake_exc
    if isinstance(failure, InvalidStatus):
        raise refused(path, failure.response.status_code, failure.response.body or b"") from failure
    if failure is not None and isinstance(failure.__cause__, EOFError):
        raise ended(path, failure.__cause__) from failure
    if failure is not None:
        raise not_gradsync(path, str(failure)) from failure
    if protocol.subprotocol != SUBPROTOCOL:
        raise not_gradsync(path, f"it offers no subprotocol {SUBPROTOCOL}")


def _initialize(websocket: WebSocket, path: str, client_id: str, request_id: int, deadline: float) -> Welcome:
    params = {
        "protocol": PROTOCOL,
        "client": {"name": "gradsync-python", "version": __version__},
        "client_id": client_id,
        "pid": os.getpid(),
        "boot_id": _boot_id(),
    }
    try:
        reply = ask(websocket, path, request_id, "session.initialize", params, deadline)
    except VersionMismatch as error:
        raise version_skew(path, error.data.get("server"), error.message) from error
    if reply.get("protocol") != PROTOCOL:
        detail = f"the daemon speaks {reply.get('protocol')!r}, the client {PROTOCOL}"
        raise version_skew(path, reply.get("server"), detail)
    limits = reply.get("limits", {})
    announced = {name: float(limits[name]) for name in ("declare_s", "first_step_s", "step_s") if name in limits}
    return Welcome(dict(reply.get("server", {})), str(reply.get("incarnation", "")), **announced)


def _wait(websocket: WebSocket, path: str, what: str, deadline: float) -> None:
    if not websocket.readable(max(0.0, deadline - time.monotonic())):
        text = (
            f"{path} accepted the connection but did not answer {what} in time; it hangs, or something else listens "
            "there: see its log, or try `gradsyncd status`"
        )
        raise ConnectionFailed("timeout", text, path)


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""


def ask(
    websocket: WebSocket, path: str, request_id: int, method: str, params: Mapping[str, Any], deadline: float
) -> dict[str, Any]:
    """One request and its result, on a connection that no other thread reads.

    Raises:
        ConnectionFailed: no answer, or none that makes sense.
        RpcError: the daemon answered with an error.
    """
    reply: Any = None
    try:
        websocket.send(request(request_id, method, params))
        while not isinstance(reply, dict) or reply.get("id") != request_id:
            _wait(websocket, path, method, deadline)
            message = websocket.receive()
            reply = None if message is None else load(message)
    except ConnectionClosed as closed:
        text = f"{path} closed the connection during {method} ({closed}); see the daemon's log"
        raise ConnectionFailed("ending", text, path) from closed
    if "error" in reply:
        raise error_from_wire(reply["error"])
    result = reply.get("result")
    if not isinstance(result, dict):
        raise not_gradsync(path, f"it answered {method} with {result!r}")
    return result
