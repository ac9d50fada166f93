"""What each attack costs a victim: `GRADSYNCD=… python tests/attack/measure.py [attack …]` prints one line for each,
with the median and the longest of the victim's steps before the attack and during it, in milliseconds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from daemon import Daemon
from hostile import Lingering
from raw import RawClient, connected, frame, request
from victim import Victim

LASTS_S = float(os.environ.get("ATTACK_SECONDS", "0")) or 5.0
Attack = Callable[[Daemon, contextlib.ExitStack], None]


def descriptors_on_the_main_socket(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    for _ in range(5):
        one = Lingering()
        stack.callback(one.let_go)
        one.pass_on(stack.enter_context(connected(daemon.socket)), b"GET / HTTP/1.1\r\n")


def descriptors_on_the_fd_socket(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    for _ in range(5):
        one = Lingering()
        stack.callback(one.let_go)
        stream = stack.enter_context(connected(daemon.socket.replace(".sock", ".fd.sock")))
        one.pass_on(stream, b"0" * 32 + b"\n")


def strangers_at_the_health_port(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    host, port = daemon.fields["health"].rsplit(":", 1)
    for _ in range(900):
        stranger = socket.create_connection((host, int(port)), timeout=60)
        stack.callback(stranger.close)


def replies_that_nobody_reads(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    question = frame(request(1, "rpc.discover")) * 300
    for _ in range(50):
        client = stack.enter_context(RawClient(daemon.socket, initialize=True))
        client.socket.setblocking(False)
        with contextlib.suppress(OSError):
            client.socket.send(question)


def memory(daemon: Daemon) -> float:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(attack: Attack) -> dict[str, object]:
    with Daemon() as daemon, Victim(daemon.socket) as victim, contextlib.ExitStack() as stack:
        time.sleep(2)
        quiet = victim.step_times(0)
        since, begin = victim.steps, time.monotonic()
        attack(daemon, stack)
        time.sleep(max(0.0, begin + LASTS_S - time.monotonic()))
        lasted = time.monotonic() - begin
        during = victim.step_times(since)
        standing = lasted - sum(during)  # a step that has not ended yet
        return {
            "attack": attack.__name__,
            "quiet_ms": round(statistics.median(quiet) * 1e3, 3),
            "during_ms": round(statistics.median(during) * 1e3, 3) if during else None,
            "longest_ms": round(max([*during, standing]) * 1e3, 1),
            "steps": len(during),
            "seconds": round(lasted, 1),
            "daemon_MiB": round(memory(daemon)),
        }


ATTACKS = [
    descriptors_on_the_main_socket,
    descriptors_on_the_fd_socket,
    strangers_at_the_health_port,
    replies_that_nobody_reads,
]

if __name__ == "__main__":
    for chosen in ATTACKS:
        if len(sys.argv) < 2 or chosen.__name__ in sys.argv[1:]:
            print(json.dumps(measure(chosen)), flush=True)
