"""Opens one WebSocket to a daemon, and says in words what went wrong."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import time
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from ._version import SUBPROTOCOL, __version__
from ._websocket import WebSocket
from .errors import ConnectionFailed

__all__ = ["MESSAGE_BYTES", "open_websocket"]

MESSAGE_BYTES = 1 << 20
_FULL_S = 0.02  # until a full queue of the listener is tried again
_URI = parse_uri("ws://localhost/")


def open_websocket(path: str, timeout: float) -> WebSocket:
    """A WebSocket on the daemon's unix socket.

    Raises:
        ConnectionFailed: with the reason and what to do.
    """
    deadline = time.monotonic() + timeout
    protocol = ClientProtocol(_URI, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MESSAGE_BYTES)
    websocket = WebSocket(_open_socket(path, timeout), protocol)
    try:
        _upgrade(websocket, protocol, path, timeout, deadline)
    except BaseException:
        websocket.dispose()
        raise
    return websocket


def _upgrade(websocket: WebSocket, protocol: ClientProtocol, path: str, timeout: float, deadline: float) -> None:
    request = protocol.connect()
    request.headers["User-Agent"] = f"gradsync-python/{__version__}"
    protocol.send_request(request)
    try:
        websocket.begin()
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            left = deadline - time.monotonic()
            if left <= 0 or not websocket.readable(left):
                raise ConnectionFailed(
                    "timeout",
                    f"{path} accepted the connection but did not answer within {timeout:g} s; it hangs, or something "
                    "else listens there: see its log, or try `gradsyncd status`",
                    path,
                )
            websocket.pump()
    except OSError as error:
        raise _ended(path, error) from error
    failure = protocol.handshake_exc
    if isinstance(failure, InvalidStatus):
        raise _refused(path, failure.response.status_code, failure.response.body or b"") from failure
    if failure is not None:
        if isinstance(failure.__cause__, EOFError):
            raise _ended(path, failure.__cause__) from failure
        raise _not_gradsync(path, str(failure)) from failure
    if protocol.subprotocol != SUBPROTOCOL:
        raise _not_gradsync(path, f"it offers no subprotocol {SUBPROTOCOL}")


def _open_socket(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:  # more wait to be accepted than the kernel keeps
                if time.monotonic() + _FULL_S > deadline:
                    raise
            time.sleep(_FULL_S)
    except OSError as error:
        sock.close()
        raise _not_connected(path, timeout, error) from error


def _not_connected(path: str, timeout: float, error: OSError) -> ConnectionFailed:
    if isinstance(error, FileNotFoundError):
        return not_found([path])
    if isinstance(error, PermissionError):
        return ConnectionFailed("permission", _permission_text(path), path)
    if isinstance(error, ConnectionRefusedError):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                return ConnectionFailed(
                    "not_a_socket", f"{path} is not a socket; give the path of gradsyncd's gradsync.sock", path
                )
        return ConnectionFailed(
            "stale",
            f"{path} exists but nobody listens: the daemon that made it is gone; start gradsyncd again "
            "(it replaces the file)",
            path,
        )
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return ConnectionFailed(
            "timeout", f"{path} did not accept a connection within {timeout:g} s; the daemon hangs: see its log", path
        )
    return ConnectionFailed(
        "not_found", f"{path} cannot be connected to: {error}; start gradsyncd and check the path", path
    )


def not_found(paths: list[str]) -> ConnectionFailed:
    """No candidate exists."""
    return ConnectionFailed(
        "not_found",
        f"no gradsyncd found; tried {', '.join(paths)}. Start one with `gradsyncd serve`, run the training under "
        "`gradsyncd run -- …`, use gradsync.connect(spawn=True), or name its socket in GRADSYNC_ADDRESS",
        paths[0],
    )


def _permission_text(path: str) -> str:
    uid = os.getuid()
    try:
        info = os.stat(path)
    except OSError:
        return (
            f"permission denied for {path}: uid {uid} may not enter its folder; "
            f"ask for access to {os.path.dirname(path) or '.'}, or start your own daemon with `gradsyncd serve`"
        )
    owner = _user(info.st_uid)
    return (
        f"permission denied for {path}: mode {stat.S_IMODE(info.st_mode):04o}, owner {owner} (uid {info.st_uid}), "
        f"group {info.st_gid}; you are uid {uid}. Join the group {info.st_gid}, have the daemon's socket mode widened, "
        "or start your own daemon with `gradsyncd serve`"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "without a name"


def _refused(path: str, status: int, body: bytes) -> ConnectionFailed:
    text = body.decode("utf-8", "replace").strip()[:500]
    if status == 403:
        return ConnectionFailed(
            "refused",
            f"the daemon at {path} refuses uid {os.getuid()}: {text or 'no reason given'}; "
            "have the uid added to its allowed uids, or start your own daemon with `gradsyncd serve`",
            path,
        )
    if status == 503:
        return ConnectionFailed(
            "ending",
            f"the daemon at {path} takes no connections now: {text or 'no reason given'}; try again later",
            path,
        )
    return _not_gradsync(path, f"it answered HTTP {status} {text}".rstrip())


def _ended(path: str, error: Exception) -> ConnectionFailed:
    return ConnectionFailed(
        "ending",
        f"{path} ended the connection at once ({error}); the daemon is ending, or something else listens there: "
        "see its log, or try again",
        path,
    )


def _not_gradsync(path: str, what: str) -> ConnectionFailed:
    return ConnectionFailed(
        "not_gradsync", f"{path} is not a gradsync daemon ({what}); check the address and what listens there", path
    )


def version_skew(path: str, server: Any, detail: str) -> ConnectionFailed:
    """Both sides speak, but different protocols."""
    version = server.get("version", "unknown") if isinstance(server, dict) else "unknown"
    return ConnectionFailed(
        "version",
        f"the daemon at {path} (version {version}) and this client (version {__version__}) speak different protocols: "
        f"{detail}; install both from the same release",
        path,
    )
