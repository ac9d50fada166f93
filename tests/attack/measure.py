"""What each attack costs a victim: `GRADSYNCD=… python tests/attack/measure.py [attack …]` prints one line for each,
with the median and the longest of the victim's steps before the attack and during it, in milliseconds. For attacks that
only stand there, also what the daemon computes for a step."""

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

from attacks import (
    ask_declare,
    batch,
    computed,
    cpu_seconds,
    declare,
    idle_jobs,
    message_with_keys,
    subscribe_and_do_not_read,
    whole_batch,
)
from collisions import colliding_names
from hostile import Daemon, Lingering
from neighbour import Neighbour
from raw import RawClient, RawRank, connected, frame, request
from victim import Victim

LASTS_S = float(os.environ.get("ATTACK_SECONDS", "0")) or 5.0
KEYS, TENSORS = 49_000, 40_000
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


def a_thousand_idle_jobs(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    idle_jobs(daemon, stack, 1000)


def colliding_keys(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(RawClient(daemon.socket))
    for _ in range(5):
        client.send(frame(message_with_keys(colliding_names(KEYS))))
        assert "error" in client.message()


def colliding_tensors(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    declare(stack.enter_context(RawRank(daemon.socket, "hostile", 0, 1)), colliding_names(TENSORS))


def a_batch_of_reports(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    rank = stack.enter_context(RawRank(daemon.socket, "hostile", 0, 1))
    declare(rank, [f"tensor-{index}" for index in range(64)])
    for step in range(100):
        rank.finished(rank.ask_finish(step))
    for _ in range(5):
        client = stack.enter_context(RawClient(daemon.socket))
        whole_batch(client, batch("stats.get", 64, job="hostile", last=100))


def a_batch_of_discover(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    for _ in range(20):
        whole_batch(stack.enter_context(RawClient(daemon.socket)), batch("rpc.discover", 64))


def subscribers_that_do_not_read(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    for _ in range(300):
        subscribe_and_do_not_read(stack.enter_context(RawClient(daemon.socket, initialize=True)))


def a_neighbour_of_200_million(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    stack.enter_context(Neighbour(daemon.socket, 200_000_000))


def the_same_with_p_3_5(daemon: Daemon, stack: contextlib.ExitStack) -> None:
    stack.enter_context(Neighbour(daemon.socket, 200_000_000, 3.5))


def memory(daemon: Daemon) -> float:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def per_step(daemon: Daemon, victim: Victim) -> float:
    """What the daemon computes for a step of the victim, in microseconds: the same on a busy machine."""
    steps, cpu = victim.steps, cpu_seconds(daemon.process.pid)
    victim.steps_on(2000)
    return round((cpu_seconds(daemon.process.pid) - cpu) / (victim.steps - steps) * 1e6, 1)


def measure(attack: Attack) -> dict[str, object]:
    # One process plays all strangers: it may have half of what these say.
    room = ("--limits-sessions", "4096", "--limits-connections", "8192")
    with Daemon(*room) as daemon, Victim(daemon.socket) as victim, contextlib.ExitStack() as stack:
        time.sleep(2)
        quiet = victim.step_times(0)
        quiet_cpu = per_step(daemon, victim)
        since, begin = victim.steps, time.monotonic()
        attack(daemon, stack)
        time.sleep(max(0.0, begin + LASTS_S - time.monotonic()))
        lasted = time.monotonic() - begin
        during = victim.step_times(since)
        during_cpu = per_step(daemon, victim) if attack in STANDING else None
        standing = lasted - sum(during)  # a step that has not ended yet
        return {
            "attack": attack.__name__,
            "quiet_ms": round(statistics.median(quiet) * 1e3, 3),
            "during_ms": round(statistics.median(during) * 1e3, 3) if during else None,
            "quiet_longest_ms": round(max(quiet) * 1e3, 1),
            "longest_ms": round(max([*during, standing]) * 1e3, 1),
            "steps": len(during),
            "daemon_us_of_a_step": [quiet_cpu, during_cpu],
            "seconds": round(lasted, 1),
            "daemon_MiB": round(memory(daemon)),
        }


ATTACKS = [
    descriptors_on_the_main_socket,
    descriptors_on_the_fd_socket,
    a_thousand_idle_jobs,
    colliding_keys,
    colliding_tensors,
    strangers_at_the_health_port,
    replies_that_nobody_reads,
    subscribers_that_do_not_read,
    a_batch_of_reports,
    a_batch_of_discover,
    a_neighbour_of_200_million,
    the_same_with_p_3_5,
]
STANDING = [a_thousand_idle_jobs, strangers_at_the_health_port]  # nothing else computes once they are there


def seconds_to_declare(names: list[str]) -> dict[str, object]:
    """From the first page to the plan; then how long another job's declaration takes meanwhile, and SIGTERM."""
    with Daemon() as daemon:
        with RawRank(daemon.socket, "large", 0, 1) as rank:
            begin = time.monotonic()
            cpu = computed(daemon, lambda: declare(rank, names))
            whole = time.monotonic() - begin
        with RawRank(daemon.socket, "again", 0, 1) as rank, RawRank(daemon.socket, "other", 0, 1) as other:
            ask_declare(rank, names)
            begin = time.monotonic()
            declare(other, ["w"])
            beside = time.monotonic() - begin
            begin = time.monotonic()
            daemon.terminate()
            return {
                "tensors": len(names),
                "declared_s": round(whole, 2),
                "daemon_cpu_s": round(cpu, 2),
                "another_job_s": round(beside, 3),
                "SIGTERM_s": round(time.monotonic() - begin, 2),
            }


NAMES: dict[str, Callable[[], list[str]]] = {
    "plain_names": lambda: [f"layers.{index}.weight" for index in range(200_000)],
    "names_with_a_long_prefix": lambda: ["p" * 400 + str(index) for index in range(200_000)],
    "names_that_collide": lambda: colliding_names(200_000),
}

if __name__ == "__main__":
    for chosen in ATTACKS:
        if len(sys.argv) < 2 or chosen.__name__ in sys.argv[1:]:
            print(json.dumps(measure(chosen)), flush=True)
    for name, names in NAMES.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            print(json.dumps({"attack": name, **seconds_to_declare(names())}), flush=True)
