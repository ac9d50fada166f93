"""An empty step, which wake-ups limit, and an echo over a unix socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from gradsync._client import connect
from gradsync._placements import Replicate
from gradsync._tensor import Tensor

from ._figures import Figure, in_turns

__all__ = ["measure_latency"]

_REQUEST, _ANSWER = 160, 900  # bytes of step.finish and of its report, about
_SAMPLES = 200  # in a round
_ALLOWED = 30.0  # 15 to 17 on two cores with nothing else to do: JSON and a WebSocket, and a turn of two threads
_ADVICE = (
    "other programs use the cores, or these sleep deeply: look at the load, at cpupower idle-info and at a CPU quota "
    "of the daemon's cgroup"
)
# The other end of the echo, in a process of its own as a daemon is.
_ECHO = f"""
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock:
    while sock.recv({_REQUEST}, socket.MSG_WAITALL):
        sock.sendall(b"x" * {_ANSWER})
"""


class _Echo:
    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _ECHO, str(other.fileno())], pass_fds=[other.fileno()]
            )
        self.round()

    def round(self) -> list[float]:
        return [self._once() for _ in range(_SAMPLES)]

    def _once(self) -> float:
        began = time.perf_counter()
        self._socket.sendall(b"x" * _REQUEST)
        self._socket.recv(_ANSWER, socket.MSG_WAITALL)
        return time.perf_counter() - began

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def measure_latency(address: str, rounds: int) -> Figure:
    """A step of one rank with one element."""
    with connect(address) as client:
        job = client.attach(f"gradsync-bench-echo-{os.getpid()}", 0, 1, restart_count=0)
        grads = job.declare([Tensor("one", (1,), placements={"dp": Replicate()})])

        def step() -> float:
            began = time.perf_counter()
            grads.ready("one")
            grads.finish()
            return time.perf_counter() - began

        echo = _Echo()
        taken_s, floor_s = in_turns([lambda: [step() for _ in range(_SAMPLES)], echo.round], rounds)
        echo.close()
    return Figure(
        f"an empty step ({taken_s * 1e6:.0f} µs)",
        f"an echo over a socket ({floor_s * 1e6:.0f} µs)",
        taken_s,
        floor_s,
        _ALLOWED,
        _ADVICE,
    )
