"""Opens a connection to a daemon: the socket, its upgrade to a WebSocket, and requests before it is in use.

One thread does all of it, before any other thread reads or sends on the connection.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from gradsync._launch._connect_errors import ended, not_gradsync, refused
from gradsync._launch._places import open_socket
from gradsync._version import SUBPROTOCOL, __version__
from gradsync._wire import load, request
from gradsync._wire_errors import error_from_wire
from gradsync.errors import ConnectionFailed

from ._websocket import WebSocket

__all__ = ["ask", "shake_hands"]

_MESSAGE_BYTES = 1 << 20
_SHORTEST_S = 0.05  # even a caller without patience gives a daemon so long
_URI = parse_uri("ws://localhost/")


def shake_hands(path: str, deadline: float) -> WebSocket:
    """A new connection, which is a WebSocket already.

    Raises:
        ConnectionFailed: with the reason and what to do.
    """
    deadline = max(deadline, time.monotonic() + _SHORTEST_S)
    protocol = ClientProtocol(_URI, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=_MESSAGE_BYTES)
    websocket = WebSocket(open_socket(path, deadline - time.monotonic()), protocol)
    try:
        _upgrade(websocket, protocol, path, deadline)
        return websocket
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


def _wait(websocket: WebSocket, path: str, what: str, deadline: float) -> None:
    if not websocket.readable(max(0.0, deadline - time.monotonic())):
        text = (
            f"{path} accepted the connection but did not answer {what} in time; it hangs, or something else listens "
            "there: see its log, or try `gradsyncd status`"
        )
        raise ConnectionFailed("timeout", text, path)


def ask(
    websocket: WebSocket, path: str, request_id: int, method: str, params: Mapping[str, Any], deadline: float
) -> dict[str, Any]:
    """One request and its result, on a connection that no other thread reads.

    Raises:
        ConnectionFailed: no answer, or none that makes sense.
        RpcError: the daemon answered with an error.
    """
    deadline = max(deadline, time.monotonic() + _SHORTEST_S)
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
