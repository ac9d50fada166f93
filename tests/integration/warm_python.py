"""Starts Python scripts in processes that have torch imported already, which else takes most of the time of a short
script: forks of one process that does nothing else.

A script sees what it would see if it was started anew: arguments, environment, folder, standard files, and its end. But
what torch and numpy read from the environment when they are loaded is of the environment of the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["WarmProcess"]

_MOST = 1 << 20  # bytes of one request
_CODE = 4  # bytes of an exit code


class WarmProcess:
    """A script as a process of its own."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], files: tuple[int, int, int]) -> None:
        """`arguments`: the path of the script, and what follows it. `files`: what its standard input, output and error
        are; they stay the caller's."""
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "folder": os.getcwd()}).encode()
        with _LOCK:
            server = _server()
            socket.send_fds(server, [request], files)
            answer, fds, _, _ = socket.recv_fds(server, 64, 2)
        assert fds, "the process that has torch imported has ended"
        self.pid = int(answer)
        self._pidfd, self._code = fds

    def wait(self, timeout: float) -> int:
        """The exit code; below 0 the signal that ended it. Raises TimeoutError where it has not ended by then."""
        poll = select.poll()
        poll.register(self._code, select.POLLIN)
        if not poll.poll(1000 * timeout):
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        return int.from_bytes(os.read(self._code, _CODE), "little", signed=True)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._pidfd)
        os.close(self._code)


_LOCK = threading.Lock()
_SERVERS: list[socket.socket] = []


def _server() -> socket.socket:
    """One for this process and its threads; it ends when this process has."""
    if not _SERVERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        _SERVERS.append(ours)
    return _SERVERS[0]


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Returns in each script's process, with what was asked for; and at the end, with None."""
    codes: dict[int, int] = {}

    def ended(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                told = codes.pop(found[0])
                os.write(told, os.waitstatus_to_exitcode(found[1]).to_bytes(_CODE, "little", signed=True))
                os.close(told)

    signal.signal(signal.SIGCHLD, ended)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _MOST, 3)
        if not request:
            return None
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            for fd in (requests.detach(), *codes.values()):
                os.close(fd)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            return json.loads(request)  # type: ignore[no-any-return]
        code, codes[pid] = os.pipe()
        pidfd = os.pidfd_open(pid)
        socket.send_fds(requests, [str(pid).encode()], [pidfd, code])
        for fd in (pidfd, code, *fds):
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _become(request: dict[str, Any]) -> None:
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["arguments"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    import torch  # noqa: F401

    if (asked := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _become(asked)
