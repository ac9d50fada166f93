"""`sync` over daemons of several nodes: exact sums, equal bits on all ranks, every placement."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
from daemon import DEADLINE_S
from node_jobs import Nodes, job_over
from ranks_in_threads import on_all, whole
from sync_jobs import Layout, SyncRank, across, check_sync, ddp, exact_norm, fsdp, hsdp, large, with_layout

from gradsync import Clip

STEPS = 3
STAGING_MIB = 64.0  # of a job, on each node


@pytest.mark.parametrize("layout", [ddp, fsdp, hsdp, across])
@pytest.mark.parametrize(("count", "per_node"), [(2, 2), (3, 2), (4, 1), pytest.param(4, 3, marks=pytest.mark.long)])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_every_rank_has_the_exact_sums(tmp_path: Path, count: int, per_node: int, layout: Layout) -> None:
    with Nodes(tmp_path, count) as nodes, job_over(nodes, per_node, kind=with_layout(layout)) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        for step in range(STEPS):
            check_sync(ranks, step, whole(on_all(ranks, lambda rank, step=step: rank.step(step))))


def test_all_ranks_clip_by_one_coefficient(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2, kind=SyncRank) as ranks:
        exact = exact_norm(ranks[0], 0)
        whole(on_all(ranks, lambda rank: rank.declare(clip=Clip(max_norm=exact / 4))))
        reports = whole(on_all(ranks, lambda rank: rank.step(0)))
        (coefficient,) = {report.coefficient for report in reports}
        assert coefficient == pytest.approx(0.25, rel=1e-6)
        names = [part.name for part in ranks[0].parts if part.name != "of nobody"]
        for name in names:
            held = {rank.grads.output(name).numpy().tobytes() for rank in ranks}
            assert len(held) == 1, f"ranks hold other bits of {name}"
        clipped = ranks[0].grads.output("whole").numpy()
        assert np.array_equal(clipped, ranks[0].parts[0].expected(ranks[0].axes, 0, 0) * np.float32(coefficient))


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_buckets_larger_than_the_memory_for_blocks(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 1, kind=with_layout(large)) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        for step in range(2):
            check_sync(ranks, step, whole(on_all(ranks, lambda rank, step=step: rank.step(step))))


def beyond_arenas_mib(pid: int) -> float:
    """What is resident but for mappings of memfds, which ranks share."""
    kib, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            counts = not (len(rest) >= 5 and rest[4].startswith("/memfd:"))
        elif first == "Rss:" and counts:
            kib += int(rest[0])
    return kib / 1024


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_job_takes_no_more_than_its_staging_memory(tmp_path: Path) -> None:
    """80 MiB of gradients travel, by way of 64 MiB at most. What else a job has is small."""
    with Nodes(tmp_path, 2) as nodes:
        with job_over(nodes, 1, "before", kind=SyncRank) as ranks:  # pools and code are there
            whole(on_all(ranks, SyncRank.declare))
            check_sync(ranks, 0, whole(on_all(ranks, lambda rank: rank.step(0))))
        before = [beyond_arenas_mib(daemon.process.pid) for daemon in nodes.daemons]
        with job_over(nodes, 1, kind=with_layout(large)) as ranks:
            whole(on_all(ranks, SyncRank.declare))
            for step in range(2):
                check_sync(ranks, step, whole(on_all(ranks, lambda rank, step=step: rank.step(step))))
                after = [beyond_arenas_mib(daemon.process.pid) for daemon in nodes.daemons]
                grown = [round(now - then, 1) for now, then in zip(after, before, strict=True)]
                assert max(grown) <= STAGING_MIB + 4.0, grown


@pytest.mark.long
@pytest.mark.timeout(3 * DEADLINE_S)
def test_more_daemons_than_an_address_has_places(tmp_path: Path) -> None:
    """All of them have one address here, with places for 16 requests: those that are refused come again."""
    with Nodes(tmp_path, 12) as nodes, job_over(nodes, 1, kind=SyncRank) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        check_sync(ranks, 0, whole(on_all(ranks, lambda rank: rank.step(0))))


def test_two_jobs_over_the_same_daemons(tmp_path: Path) -> None:
    with (
        Nodes(tmp_path, 2) as nodes,
        job_over(nodes, 1, "one", kind=SyncRank) as one,
        job_over(nodes, 1, "other", kind=with_layout(fsdp)) as other,
    ):
        whole(on_all([*one, *other], SyncRank.declare))
        for step in range(STEPS):
            reports = whole(on_all([*one, *other], lambda rank, step=step: rank.step(step)))
            check_sync(one, step, reports[:2])
            check_sync(other, step, reports[2:])


def test_bytes_of_a_stranger_disturb_nobody(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2, kind=SyncRank) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        for node in range(2):
            for sent in (b"\0" * 64, b"GET /peer/data HTTP/1.1\r\n\r\n" + b"\xff" * 4096, b"GET /peer/data HT"):
                with socket.create_connection((f"127.0.0.{node + 2}", nodes.port), DEADLINE_S) as stranger:
                    stranger.sendall(sent)
        check_sync(ranks, 0, whole(on_all(ranks, lambda rank: rank.step(0))))


def test_status_names_the_groups_of_ranks_that_exchange_gradients(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes, job_over(nodes, 2, kind=with_layout(hsdp)) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        check_sync(ranks, 0, whole(on_all(ranks, lambda rank: rank.step(0))))
        for rank in (ranks[0], ranks[2]):
            (job,) = rank.client.status()["jobs"]
            groups = {group["name"]: group for group in job["communicators"]}
            assert {name.split(":")[0] for name in groups} == {"replicate+shard"}
            assert sorted(tuple(group["ranks"]) for group in groups.values()) == [(0, 1, 2, 3)]
            for group in groups.values():
                assert group["epoch"] == job["epoch"]
                assert group["state"] == "idle"
                assert group["operations"] > 0
                assert min(group["sent_bytes"], group["received_bytes"]) > 0
                assert 0 <= group["last_use_age_s"] < DEADLINE_S
