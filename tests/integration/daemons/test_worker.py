"""`gradsyncd worker`, as a process lane starts it: told by messages over a socket what to do."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from daemon import BINARY

KINDS = {"command": 0, "report": 1}
VERSION, UNLOAD_PLAN, FAILED = 9, 4, 9
TIMEOUT_S = 60


def message(kind: str, alternative: int, payload: bytes) -> bytes:
    """A message of the lane codec, behind its size."""
    head = struct.pack("<4sHBBIIQ", b"GSLN", VERSION, KINDS[kind], alternative, 0, 0, len(payload))
    return struct.pack("<Q", len(head + payload)) + head + payload


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(TIMEOUT_S)
    with theirs:
        command = [BINARY, "worker", "--fd", str(theirs.fileno()), "--threads", "1"]
        worker = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    return worker, ours


def end_of(worker: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = worker.communicate(timeout=TIMEOUT_S)
    return worker.returncode, errors.decode()


def test_a_worker_answers_commands_and_ends_with_its_supervisor() -> None:
    worker, ours = start()
    with ours:
        ours.send(message("command", UNLOAD_PLAN, struct.pack("<Q", 8)))
        report = ours.recv(1 << 16)
        assert report[:8] == struct.pack("<Q", len(report) - 8)
        assert report[14:16] == bytes([KINDS["report"], FAILED])
        assert b"plan 8 is not loaded" in report
    assert end_of(worker) == (0, "")


def test_a_worker_ends_at_what_is_no_command() -> None:
    for garbage, found in [
        (b"garbage", "a datagram of 7 bytes"),
        (message("report", UNLOAD_PLAN, struct.pack("<Q", 8)), "it has kind 1"),
        (message("command", UNLOAD_PLAN, b"1234"), "8 bytes are needed, 4 are left"),
    ]:
        worker, ours = start()
        with ours:
            ours.send(garbage)
            assert ours.recv(1 << 16) == b""
            code, errors = end_of(worker)
        assert code == 70
        assert found in errors


def test_a_worker_without_a_socket_says_that_people_do_not_start_it() -> None:
    result = subprocess.run([BINARY, "worker"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 64
    assert "started by gradsyncd itself" in result.stderr


def test_the_list_of_commands_does_not_name_it() -> None:
    result = subprocess.run([BINARY, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "worker" not in result.stdout


LANES = Path(BINARY).with_name("lane_conformance_test")


@pytest.mark.skipif(not LANES.exists(), reason=f"{LANES} is not built")
def test_workers_add_up_by_a_library_with_the_interface_of_nccl() -> None:
    on_cpus_and_a_gpu = (0, 2, 3)
    names = [f"Nodes/CollectiveLanes.leave_in_every_byte_what_one_lane_leaves/{number}" for number in on_cpus_and_a_gpu]
    result = subprocess.run(
        [LANES, "--gtest_filter=" + ":".join(names)],
        env={**os.environ, "GRADSYNC_TEST_WORKER": BINARY},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert f"[  PASSED  ] {len(names)} tests" in result.stdout
