"""A daemon that is given little: a memory cgroup without room, a folder of a read-only file system, and turns of its io
thread that may compute for a moment only."""

from __future__ import annotations

import array
import contextlib
import ctypes
import math
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES, Daemon, get, run_command
from raw import REPLICATED, Closed, RawRank

import gradsync
from gradsync.errors import InsufficientMemory

SUM = {"dp": gradsync.Partial("sum") >> gradsync.Replicate()}
LIMIT, HELD = 128 << 20, 64 << 20
HOLDING = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
held = b"x" * int(sys.argv[2])
print("holds", flush=True)
sys.stdin.read()
"""
SLOT = 64  # bytes of the arena that a small tensor takes
FLOATS = 4  # of each of many tensors


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A memory cgroup of that limit, v2 or v1; a process that enters it has to have ended when the context ends."""
    name = f"gradsync-test-{secrets.token_hex(4)}"
    for mount, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        group = Path(mount) / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / file).exists():  # a folder like any other, or a hierarchy without this controller
                continue
            try:
                (group / file).write_text(str(limit))
            except OSError:
                continue
            yield group
            return
        finally:
            group.rmdir()
    pytest.skip("this machine lets nobody make a memory cgroup")


def enter(group: Path, pid: int) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"this machine lets no process into a memory cgroup: {error}")
    paths = [line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    if f"/{group.name}" not in paths:
        pytest.skip(f"the cgroup of the daemon has a name here that only the host can follow: {paths}")


@contextlib.contextmanager
def holding(group: Path, size: int) -> Iterator[None]:
    """Another process of that cgroup has so many of its bytes."""
    if not size:
        yield
        return
    command = [sys.executable, "-c", HOLDING, str(group / "cgroup.procs"), str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        yield
        other.communicate(timeout=DEADLINE_S)


def refused_and_then_given(daemon: Daemon, wanted: int, room: int) -> None:
    for attempt in range(TIMES):
        with gradsync.connect(daemon.socket) as client:
            job = client.attach(job=f"job-{attempt}", rank=0, world_size=1)
            with pytest.raises(InsufficientMemory) as refused:
                job.declare([gradsync.Tensor("w", (wanted // 4,), placements=SUM)])
            said = re.search(r"needs (\d+) bytes, (\d+) are free \(limit (\d+),", str(refused.value))
            assert said, refused.value
            need, free, limit = map(int, said.groups())
            assert (need, limit) == (wanted, LIMIT)
            assert 0 < free <= room
            assert daemon.process.poll() is None
            grads = job.declare([gradsync.Tensor("w", (3,), placements=SUM)])
            grads.input("w").numpy()[:] = [1.0, 2.0, 2.0]
            grads.ready("w")
            assert grads.finish(timeout=DEADLINE_S).norm == 3.0
            assert grads.output("w").numpy().tolist() == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("held", [0, HELD])
def test_an_arena_above_the_room_of_the_cgroup_is_refused_and_a_small_one_is_not(held: int) -> None:
    wanted = LIMIT - held + SLOT
    with memory_group(LIMIT) as group, Daemon() as daemon:
        enter(group, daemon.process.pid)
        with holding(group, held):
            refused_and_then_given(daemon, wanted, LIMIT - held)
        assert get(daemon.health(), "/livez")[0] == 200


def test_arenas_that_clients_outside_the_cgroup_filled_count_whole() -> None:
    """Their pages are not charged to the daemon; once they are punched out, the daemon's next access makes new ones."""
    with memory_group(LIMIT) as group, Daemon() as daemon:
        enter(group, daemon.process.pid)
        with gradsync.connect(daemon.socket) as one, gradsync.connect(daemon.socket) as other:
            large = [gradsync.Tensor("w", (LIMIT // 4 * 3 // 5,), placements=SUM)]
            grads = one.attach(job="one", rank=0, world_size=1).declare(large)
            with pytest.raises(InsufficientMemory):
                other.attach(job="other", rank=0, world_size=1).declare(large)
            for fd in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):
                    if "gradsync-arena" in os.readlink(f"/proc/self/fd/{fd}"):
                        punch_out(fd)
            grads.input("w").numpy()[0] = 3.0
            grads.ready("w")
            assert grads.finish(timeout=DEADLINE_S).norm == 3.0
        assert daemon.process.poll() is None


def punch_out(fd: int) -> None:
    keep_size, punch_hole = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_long(os.fstat(fd).st_size)
    assert libc.fallocate(fd, keep_size | punch_hole, ctypes.c_long(0), size) == 0, ctypes.get_errno()


def test_a_folder_of_a_read_only_file_system_is_named_with_that_reason(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        for _ in range(TIMES):
            done = run_command("serve", "--socket", str(tmp_path / "gradsync.sock"), "--health", "off")
            assert done.returncode == 78, done.stderr
            assert "Read-only file system" in done.stderr
            assert str(tmp_path) in done.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def ask_page(rank: RawRank, page: int, size: int, *, last: bool) -> int:
    tensors = [
        {
            "name": f"layers.{page * size + place}.block.weight",
            "shape": [FLOATS],
            "dtype": "float32",
            "mesh": "m",
            "placements": REPLICATED,
        }
        for place in range(size)
    ]
    return rank.ask("gradients.declare", buffer=rank.buffer, page=page, last=last, tensors=tensors)


def test_a_turn_that_computes_for_longer_than_a_test_allows_ends_the_daemon_and_is_named() -> None:
    tensors = 5_000  # a page of nearly a megabyte, which takes about ten milliseconds
    with Daemon("--deadlines-io-turn-ms", "2") as daemon:
        rank = RawRank(daemon.socket, "job", 0, 1)
        with rank.socket:
            rank.allocate(tensors * SLOT)
            with pytest.raises((Closed, ConnectionResetError)):
                rank.answer(ask_page(rank, 0, tensors, last=True))
        assert daemon.process.wait(DEADLINE_S) == -signal.SIGABRT
        assert daemon.process.stderr is not None
        said = daemon.process.stderr.read().decode()
    assert re.search(r"computed for \d+ ms in 'a message gradients\.declare, \d+ bytes', the limit is 2 ms", said), said


def test_many_tensors_and_their_steps_have_no_turn_that_computes_for_50_ms() -> None:
    pages, size = 100, 1_000
    last = pages * size * SLOT // 4 - SLOT // 4
    with Daemon("--deadlines-io-turn-ms", "50") as daemon, contextlib.ExitStack() as stack:
        ranks = [RawRank(daemon.socket, "job", rank, 2) for rank in range(2)]
        for rank in ranks:
            stack.enter_context(rank)
            rank.allocate(pages * size * SLOT)
        for page in range(pages - 1):
            for rank in ranks:
                answer = rank.answer(ask_page(rank, page, size, last=False))
                assert answer["result"] == {"received": (page + 1) * size}
        for rank, asked in [(rank, ask_page(rank, pages - 1, size, last=True)) for rank in ranks]:
            rank.declared(asked)
        for step in range(TIMES):
            for rank in ranks:
                rank.values[:] = array.array("f", [1.0 + step + rank.rank]) * len(rank.values)
            for rank, asked in [(rank, rank.ask_finish(step)) for rank in ranks]:
                report = rank.finished(asked)
                assert report.get("step") == step, report
                summed = 3.0 + 2 * step
                assert report["norm"] == pytest.approx(summed * math.sqrt(pages * size * FLOATS), rel=1e-6)
                assert rank.values[0] == rank.values[last] == summed
        assert daemon.process.poll() is None
