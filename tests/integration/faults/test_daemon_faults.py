"""What a machine does to a daemon: no descriptors, no room for logs or sockets, connections by the thousand.
Afterwards it serves, and descriptors, threads and memory are where they were."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from daemon import BINARY, DEADLINE_S, TIMES, Daemon, clean_environment, run_command
from holdings import becomes, descriptors, resident_kb, threads
from raw import connected

import gradsync
from gradsync.errors import InsufficientMemory

SUM = {"dp": gradsync.Partial("sum") >> gradsync.Replicate()}


def one_step(address: str, job: str) -> float:
    with gradsync.connect(address) as client:
        grads = client.attach(job=job, rank=0, world_size=1).declare([gradsync.Tensor("w", (3,), placements=SUM)])
        grads.input("w").numpy()[:] = 2.0
        grads.ready("w")
        return grads.finish(timeout=DEADLINE_S).norm


def test_200_ranks_come_and_go() -> None:
    with Daemon() as daemon:
        pid = daemon.process.pid
        for cycle in range(20):  # the allocator and the pools have what they need
            one_step(daemon.socket, f"warm-{cycle}")
        fds, count, memory = descriptors(pid), threads(pid), resident_kb(pid)
        for cycle in range(200):
            assert one_step(daemon.socket, f"job-{cycle}") == pytest.approx(12**0.5)
        becomes(lambda: int(descriptors(pid) <= fds), 1)  # the last of the warm-up may have been on its way out
        becomes(lambda: threads(pid), count)
        assert resident_kb(pid) - memory < 1024


def test_ten_thousand_connections() -> None:
    with Daemon() as daemon:
        pid = daemon.process.pid
        fds, count = descriptors(pid), threads(pid)

        def many(number: int) -> None:
            for index in range(number):
                with connected(daemon.socket if index % 2 else daemon.socket.replace(".sock", ".fd.sock")) as raw:
                    raw.sendall(
                        (b"GET / HTTP/1.1\r\nUpgr", b"\x00" * 70, b"", b"POST /rpc HTTP/1.1\r\n\r\n")[index % 4]
                    )

        many(1_000)
        becomes(lambda: descriptors(pid), fds)
        memory = resident_kb(pid)
        many(9_000)
        becomes(lambda: descriptors(pid), fds)
        becomes(lambda: threads(pid), count)
        assert resident_kb(pid) - memory < 2048
        assert one_step(daemon.socket, "after") > 0


def test_without_descriptors_it_refuses_and_goes_on_when_there_are_some() -> None:
    with Daemon() as daemon:
        pid = daemon.process.pid
        assert one_step(daemon.socket, "before") > 0
        usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for attempt in range(TIMES):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 2, usual[1]))
            waiting = [socket.socket(socket.AF_UNIX) for _ in range(12)]
            for raw in waiting:
                raw.settimeout(DEADLINE_S)
                raw.connect(daemon.socket)  # the kernel's queue takes them, whatever the daemon has
            with pytest.raises(gradsync.GradsyncError):
                gradsync.connect(daemon.socket, timeout=0.2)
            for raw in waiting:
                raw.close()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
            assert one_step(daemon.socket, f"again-{attempt}") > 0


def test_an_arena_that_finds_no_descriptor_is_a_typed_error() -> None:
    with Daemon() as daemon, gradsync.connect(daemon.socket) as client:
        pid = daemon.process.pid
        job = client.attach(job="job", rank=0, world_size=1)
        usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for _ in range(TIMES):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid), usual[1]))
            with pytest.raises(gradsync.GradsyncError) as refused:
                job.declare([gradsync.Tensor("w", (3,), placements=SUM)])
            assert "descriptor" in str(refused.value) or "open files" in str(refused.value)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        assert job.declare([gradsync.Tensor("w", (3,), placements=SUM)]) is not None


def test_more_than_the_machine_has_is_insufficient_memory() -> None:
    with Daemon() as daemon, gradsync.connect(daemon.socket) as client:
        job = client.attach(job="job", rank=0, world_size=1)
        for _ in range(TIMES):
            with pytest.raises(InsufficientMemory, match="needs 4398046511104 bytes"):
                job.declare([gradsync.Tensor("w", (1 << 40,), placements=SUM)])
        assert job.declare([gradsync.Tensor("w", (3,), placements=SUM)]) is not None


@pytest.mark.parametrize("place", ["/proc/gradsync", "/sys"])
def test_a_folder_that_takes_no_socket_is_named(place: str) -> None:
    done = run_command("serve", "--socket", f"{place}/gradsync.sock", "--health", "off")
    assert done.returncode == 78
    assert place in done.stderr


def test_logs_that_find_no_room_disturb_nobody(tmp_path: Path) -> None:
    address = str(tmp_path / "gradsync.sock")
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [BINARY, "serve", "--socket", address, "--health", "off", "--log-level", "trace"],
            env=clean_environment(),
            stdout=full,
            stderr=full,
        )
    try:
        end = time.monotonic() + DEADLINE_S
        while not Path(address).exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        for attempt in range(TIMES):
            assert one_step(address, f"job-{attempt}") > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE_S)
