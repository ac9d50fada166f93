"""What `connect` says when it reaches no usable daemon: the reason, and what to try next."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from typing import Any

from gradsync._version import __version__
from gradsync.errors import ConnectionFailed

__all__ = ["ended", "foreign_server", "not_connected", "not_found", "not_gradsync", "refused", "unsafe", "version_skew"]


def not_found(paths: list[str]) -> ConnectionFailed:
    """No candidate exists."""
    return ConnectionFailed(
        "not_found",
        f"no gradsyncd found; tried {', '.join(paths)}. Start one with `gradsyncd serve`, run the training under "
        "`gradsyncd run -- …`, use gradsync.connect(spawn=True), or name its socket in GRADSYNC_ADDRESS",
        paths[0],
    )


def not_connected(path: str, timeout: float, error: OSError) -> ConnectionFailed:
    """The socket cannot be connected to."""
    if isinstance(error, FileNotFoundError):
        return not_found([path])
    if isinstance(error, PermissionError):
        return ConnectionFailed("permission", _permission_text(path), path)
    if isinstance(error, ConnectionRefusedError):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                text = f"{path} is not a socket; give the path of gradsyncd's gradsync.sock"
                return ConnectionFailed("not_a_socket", text, path)
        text = f"{path} exists but no daemon listens there: the one that made it is gone; start gradsyncd again"
        return ConnectionFailed("stale", f"{text} (it replaces the file)", path)
    if isinstance(error, (TimeoutError, BlockingIOError)):
        text = f"{path} did not accept a connection within {timeout:g} s; the daemon hangs: see its log"
        return ConnectionFailed("timeout", text, path)
    text = f"{path} cannot be connected to: {error}; start gradsyncd and check the path"
    return ConnectionFailed("not_found", text, path)


def _permission_text(path: str) -> str:
    uid = os.getuid()
    try:
        info = os.stat(path)
    except OSError:
        return (
            f"permission denied for {path}: uid {uid} may not enter its folder; "
            f"ask for access to {os.path.dirname(path) or '.'}, or start your own daemon with `gradsyncd serve`"
        )
    owner = "without a name"
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(info.st_uid).pw_name
    return (
        f"permission denied for {path}: mode {stat.S_IMODE(info.st_mode):04o}, owner {owner} (uid {info.st_uid}), "
        f"group {info.st_gid}; you are uid {uid}. Join the group {info.st_gid}, have the daemon's socket mode widened, "
        "or start your own daemon with `gradsyncd serve`"
    )


def unsafe(path: str, folder: str, why: str, uid: int) -> ConnectionFailed:
    """A stranger may have put the socket there."""
    return ConnectionFailed(
        "unsafe",
        f"{path} is not connected to: everybody may write to /tmp, and the folder {folder} {why}, but you are "
        f"uid {uid}. Have it removed and start gradsyncd again, connect as the user who started it, or start it with "
        "a --socket in a folder outside of /tmp",
        path,
    )


def foreign_server(path: str, folder: str, server: int, owner: int) -> ConnectionFailed:
    """The user that listens there is not the owner of the folder."""
    return ConnectionFailed(
        "unsafe",
        f"{path} is not connected to: uid {server} listens there, and the folder {folder} belongs to uid {owner}. "
        f"Start gradsyncd as uid {owner}, as root or as yourself, or give the folder to uid {server}",
        path,
    )


def refused(path: str, status: int, body: bytes) -> ConnectionFailed:
    """The answer to the upgrade is an HTTP error."""
    text = body.decode("utf-8", "replace").strip()[:500]
    if status == 403:
        return ConnectionFailed(
            "refused",
            f"the daemon at {path} refuses uid {os.getuid()}: {text or 'no reason given'}; "
            "have the uid added to its allowed uids, or start your own daemon with `gradsyncd serve`",
            path,
        )
    if status == 503:
        text = f"the daemon at {path} takes no connections now: {text or 'no reason given'}; try again later"
        return ConnectionFailed("ending", text, path)
    return not_gradsync(path, f"it answered HTTP {status} {text}".rstrip())


def ended(path: str, error: Exception) -> ConnectionFailed:
    """The connection ended before the upgrade was answered."""
    return ConnectionFailed(
        "ending",
        f"{path} ended the connection at once ({error}); the daemon is ending, or something else listens there: "
        "see its log, or try again",
        path,
    )


def not_gradsync(path: str, what: str) -> ConnectionFailed:
    """Something else listens there."""
    text = f"{path} is not a gradsync daemon ({what}); check the address and what listens there"
    return ConnectionFailed("not_gradsync", text, path)


def version_skew(path: str, server: Any, detail: str) -> ConnectionFailed:
    """The daemon and this client speak different protocols."""
    version = server.get("version", "unknown") if isinstance(server, dict) else "unknown"
    return ConnectionFailed(
        "version",
        f"the daemon at {path} (version {version}) and this client (version {__version__}) speak different protocols: "
        f"{detail}; install both from the same release",
        path,
    )
