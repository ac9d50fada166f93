"""A file system that fills up while the daemon serves: it goes on, and says what is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon
from raw import REPLICATED, RawRank
from small_disk import fill, small_tmpfs

POLICY = {"kind": "percentile", "window": 1000, "warmup": 2}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "small") as folder:
        yield folder


def declare(rank: RawRank) -> None:
    rank.allocate(64)
    rank.numel = 4
    tensor = {"name": "w", "shape": [4], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
    clip = [{"group": "all", "policy": POLICY}]
    rank.declared(rank.ask("gradients.declare", buffer=rank.buffer, tensors=[tensor], options={"clip": clip}))


def steps(rank: RawRank, numbers: range) -> None:
    for step in numbers:
        rank.fill(float(step % 7 + 1))
        report = rank.finished(rank.ask_finish(step))
        assert report["norm"] == pytest.approx(2 * (step % 7 + 1))


def test_policies_that_find_no_room_are_not_stored_and_said_to_be_lost(small: Path) -> None:
    with Daemon("--engine-policy-directory", str(small)) as daemon, RawRank(daemon.socket, "before", 0, 1) as before:
        declare(before)
        steps(before, range(50))
        fill(small)
        steps(before, range(50, 1500))  # what is remembered outgrows the room of its file
        said = daemon.wait_for_log("policy state not kept job=before ")["msg"]
        assert os.strerror(errno.ENOSPC) in said
        with RawRank(daemon.socket, "after", 0, 1) as after:
            declare(after)
            steps(after, range(50))
