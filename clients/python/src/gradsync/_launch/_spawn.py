"""A private daemon for one process, a notebook for instance: `gradsyncd run` with a child that lives as long.

The child prints the address and then reads its stdin, which is a pipe from this process. When this process ends,
however it ends, the pipe closes and the child ends; then the daemon ends too and removes its private folder.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from gradsync.errors import ConnectionFailed

__all__ = ["PrivateDaemon", "find_binary", "run_daemon_of_this_package"]

_STOP_S = 10.0
_BRIEF_STOP_S = 0.2
_MARK = b"gradsync-address="  # other lines on stdout are not for this client
_BESIDE = Path(__file__).parents[1] / "bin" / "gradsyncd"  # where wheels have it
_CHILD = f'echo "{_MARK.decode()}$GRADSYNC_ADDRESS"; read -r _'


def find_binary(environ: Mapping[str, str] | None = None) -> str:
    """Looks for the binary in $GRADSYNCD, then in this package, whose release it is of, then in PATH.

    Raises:
        ConnectionFailed: there is none.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("GRADSYNCD")
    if named:
        if os.access(named, os.X_OK):
            return named
        raise ConnectionFailed("spawn", f"GRADSYNCD={named!r} is not an executable file; correct or unset it", named)
    found = str(_BESIDE) if os.access(_BESIDE, os.X_OK) else shutil.which("gradsyncd", path=environ.get("PATH"))
    if found is None:
        raise ConnectionFailed(
            "spawn",
            f"a private daemon needs the gradsyncd binary, and there is none in GRADSYNCD, {_BESIDE} or PATH; "
            "build or install it, or set GRADSYNCD to its path",
        )
    return found


def run_daemon_of_this_package() -> None:
    """The command `gradsyncd` of a wheel: becomes the daemon that came with it."""
    os.execv(_BESIDE, ["gradsyncd", *sys.argv[1:]])


class PrivateDaemon:
    """A running daemon; `address` is its socket path."""

    def __init__(self, timeout: float) -> None:
        binary = find_binary()
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="gradsyncd-log-")  # noqa: SIM115
        self._owner_pid = os.getpid()
        self._process = subprocess.Popen(
            [binary, "run", "--", "/bin/sh", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C in a terminal must reach only the trainer
        )
        _live.add(self)
        try:
            self.address = self._read_address(binary, time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise

    def _read_address(self, binary: str, deadline: float) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                for line in said.splitlines(keepends=True):
                    if line.startswith(_MARK) and line.endswith(b"\n"):
                        return line.removeprefix(_MARK).decode().strip()
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ConnectionFailed(
                        "spawn", f"{binary} did not become ready in time; its log:\n{self.log_tail()}"
                    )
                data = os.read(stdout.fileno(), 4096)
                if not data:
                    self._process.wait(_STOP_S)
                    raise ConnectionFailed(
                        "spawn",
                        f"{binary} ended with status {self._process.returncode} before it was ready; "
                        f"run it by hand to see more; its log:\n{self.log_tail()}",
                    )
                said += data

    def log_tail(self) -> str:
        """The end of what the daemon wrote."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode("utf-8", "replace").strip() or "(empty)"

    def stop(self, *, brief: bool = False) -> None:
        """Stops the daemon and waits for it, at most for a moment if `brief`.

        In a forked child it does nothing, and stopping again does nothing.
        """
        if os.getpid() != self._owner_pid:
            return
        process = self._process
        self._close_pipes()
        if process.poll() is None:
            try:
                process.wait(_BRIEF_STOP_S if brief else _STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)
        self._log.close()

    def abandon_in_child(self) -> None:
        """Closes a forked child's copy of the pipe, so that the daemon ends with its owner and not with the child."""
        self._close_pipes()
        self._process.returncode = 0  # the daemon is not a child of this process, which cannot wait for it

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


_live: weakref.WeakSet[PrivateDaemon] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for daemon in list(_live):
        daemon.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_in_child)
