"""Starts Python scripts in processes that have torch imported already, which otherwise takes most of the time of a
short script: forks of one process that does nothing else.

A script has the arguments, the environment, the folder and the standard files that it is given, and ends as any other.
But what is read from the environment when Python starts, or torch and numpy are loaded, is that of the first test.
"""

from __future__ import annotations

import atexit
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

_MOST = 1 << 17  # bytes of one request, which has to fit into the buffer of a socket
_CODE = 4  # bytes of an exit code
_PATIENCE_S = 100.0  # for the first answer, before which torch is imported


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
        self._pidfd, self._told = fds
        self._code: int | None = None

    def wait(self, timeout: float) -> int:
        """The exit code; below 0 the signal that ended it. Raises TimeoutError where it has not ended by then."""
        if self._code is None:
            poll = select.poll()
            poll.register(self._told, select.POLLIN)
            if not poll.poll(1000 * timeout):
                raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
            told = os.read(self._told, _CODE)
            assert told, "the process that has torch imported has ended"
            self._code = int.from_bytes(told, "little", signed=True)
        return self._code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._pidfd)
        os.close(self._told)


_LOCK = threading.Lock()
_SERVERS: list[socket.socket] = []


def _server() -> socket.socket:
    """One for this process and its threads; it ends when this process has."""
    if not _SERVERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE_S)
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        _SERVERS.append(ours)
        atexit.register(_end, ours, process)
    return _SERVERS[0]


def _end(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
    server.close()
    process.wait(10)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Returns in each script's process, with what was asked for; and at the end, with None."""
    scripts: dict[int, tuple[int, int]] = {}  # pid, and where the exit code is told, by the pidfd of the process
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != requests.fileno():
                poll.unregister(ready)
                _tell_end(ready, *scripts.pop(ready))
                continue
            request, files, _, _ = socket.recv_fds(requests, _MOST, 3)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                for fd in (requests.detach(), *scripts, *(told for _, told in scripts.values())):
                    os.close(fd)
                for number, fd in enumerate(files):
                    os.dup2(fd, number)
                    os.close(fd)
                return json.loads(request)  # type: ignore[no-any-return]
            pidfd = os.pidfd_open(pid)
            code, told = os.pipe()
            socket.send_fds(requests, [str(pid).encode()], [pidfd, code])
            for fd in (code, *files):
                os.close(fd)
            scripts[pidfd] = pid, told
            poll.register(pidfd, select.POLLIN)


def _tell_end(pidfd: int, pid: int, told: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(told, code.to_bytes(_CODE, "little", signed=True))
    os.close(told)
    os.close(pidfd)


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
