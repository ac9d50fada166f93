"""`sync` over daemons of several nodes whose workers add up gradients by a library with the interface of NCCL: right
sums, equal bits, and what becomes of communicators that fail. Memory is that of CPUs, and the library a fake one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon import BINARY, DEADLINE_S, get, run_command
from node_faults import PROCESS_S, Asking, check_errors, wait_for
from node_jobs import Nodes, job_over
from ranks_in_threads import on_all, whole
from sync_jobs import Layout, Part, SyncRank, check_sync, ddp, fsdp, hsdp, sync_again, with_layout

from gradsync.errors import DeclareTimeout, NodeLost, NodeRefused, PlanMismatch, StepFailed, UnsupportedPlacement

LIBRARY = Path(BINARY).parents[1] / "lib" / "libnccl_fake.so"
WITH_NCCL = ("--nccl-cpu-gradients", "nccl", "--nccl-library", str(LIBRARY))
WARM_UP = 3  # operations of a new communicator, before its first step
PER_STEP = 1  # of `one`: both halves of its tensor together

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")


def one(nodes: int, per_node: int) -> tuple[dict[str, int], list[Part]]:
    """One tensor, so that few operations make a step."""
    return {"dp": nodes * per_node}, [Part("whole", (257, 3), {"dp": "all"})]


def with_faults(script: str, version: str = "22809") -> tuple[str, ...]:
    return ("env", f"GRADSYNC_FAKE_NCCL={script}", f"GRADSYNC_FAKE_NCCL_VERSION={version}")


def workers_of(nodes: Nodes, node: int) -> list[int]:
    """The processes that have NCCL, which the daemon itself has not."""
    daemon = nodes.daemons[node].process.pid
    children = [child for each in Path(f"/proc/{daemon}/task").glob("*/children") for child in each.read_text().split()]
    assert "libnccl_fake" not in Path(f"/proc/{daemon}/maps").read_text()
    return [int(child) for child in children if "libnccl_fake" in Path(f"/proc/{child}/maps").read_text()]


@pytest.mark.parametrize("layout", [ddp, fsdp, hsdp])
@pytest.mark.parametrize(("count", "per_node"), [(2, 2), (3, 1)])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_every_rank_has_the_exact_sums(tmp_path: Path, count: int, per_node: int, layout: Layout) -> None:
    with Nodes(tmp_path, count, *WITH_NCCL) as nodes, job_over(nodes, per_node, kind=with_layout(layout)) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        for step in range(2):
            check_sync(ranks, step, whole(on_all(ranks, lambda rank, step=step: rank.step(step))))
        assert [len(workers_of(nodes, node)) for node in range(count)] == [1] * count


@pytest.mark.timeout(3 * DEADLINE_S)
def test_sums_that_are_rounded_have_equal_bits_on_all_ranks(tmp_path: Path) -> None:
    class RandomRank(with_layout(one)):  # type: ignore[misc]
        def write(self, step: int, copied: object = None) -> None:
            values = np.random.default_rng([step, self.rank]).standard_normal((257, 3)).astype(np.float32)
            self.grads.input("whole").numpy()[...] = values
            self.grads.ready("whole")

    with Nodes(tmp_path, 3, *WITH_NCCL) as nodes, job_over(nodes, 1, kind=RandomRank) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        reports = whole(on_all(ranks, lambda rank: rank.step(0)))
        assert len({report.norm for report in reports}) == 1
        assert len({rank.grads.output("whole").numpy().tobytes() for rank in ranks}) == 1
        exact = sum(np.random.default_rng([0, rank]).standard_normal((257, 3)).astype(np.float32) for rank in range(3))
        assert np.allclose(ranks[0].grads.output("whole").numpy(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_status_and_metrics_count_the_collectives_of_each_communicator(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2, *WITH_NCCL) as nodes, job_over(nodes, 2, kind=with_layout(hsdp)) as ranks:
        whole(on_all(ranks, SyncRank.declare))
        for step in range(2):
            check_sync(ranks, step, whole(on_all(ranks, lambda rank, step=step: rank.step(step))))
        for node, rank in enumerate((ranks[0], ranks[2])):
            (job,) = rank.client.status()["jobs"]
            (group,) = job["communicators"]
            assert group["name"].startswith("replicate+shard:")
            assert group["ranks"] == [0, 2]
            assert (group["transport"], group["state"], group["epoch"]) == ("nccl", "idle", job["epoch"])
            assert group["operations"] == 2 * group["operations_per_step"] > 0
            assert min(group["sent_bytes"], group["received_bytes"]) > 0
            metrics = get(nodes.daemons[node].health(), "/metrics")[1].splitlines()
            assert f"gradsync_collectives_total {group['operations']}" in metrics


@contextlib.contextmanager
def job_with(folder: Path, script: str) -> Iterator[tuple[Nodes, list[SyncRank]]]:
    """A job of two nodes that has taken step 0."""
    with (
        Nodes(folder, 2, *WITH_NCCL, before=with_faults(script)) as nodes,
        job_over(nodes, 1, kind=with_layout(one)) as ranks,
    ):
        whole(on_all(ranks, SyncRank.declare))
        check_sync(ranks, 0, whole(on_all(ranks, lambda rank: rank.step(0))))
        yield nodes, ranks


def asked_until_stuck(ranks: list[SyncRank], step: int) -> Asking:
    asking = Asking(ranks, step)
    asking.wait_until_asked()
    time.sleep(0.3)  # their collective is under way, and stands still
    return asking


@pytest.mark.timeout(3 * DEADLINE_S)
def test_an_error_that_comes_late_fails_the_step_by_name_and_the_next_epoch_has_other_communicators(
    tmp_path: Path,
) -> None:
    with job_with(tmp_path, f"error rank=1 operation={WARM_UP + PER_STEP} polls=20") as (_, ranks):
        before = ranks[0].client.status()["jobs"][0]["epoch"]
        for heard in Asking(ranks, 1).heard():
            assert isinstance(heard.result, NodeLost), heard
            assert "communicator dp:" in str(heard.result)
            assert "0, 1" in str(heard.result), "its ranks"
        sync_again(ranks, 1)
        assert ranks[0].client.status()["jobs"][0]["epoch"] > before


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_communicator_that_cannot_be_built_is_named_on_every_node(tmp_path: Path) -> None:
    """The ranks of the node that finds it hear of it at once; those of the other, at the latest, when their time is
    over."""
    with (
        Nodes(tmp_path, 2, *WITH_NCCL, before=with_faults("error rank=1 operation=1")) as nodes,
        job_over(nodes, 1, kind=with_layout(one)) as ranks,
    ):
        for refused in on_all(ranks, lambda rank: rank.declare(timeout=5.0)):
            assert isinstance(refused, NodeLost | DeclareTimeout), refused
            assert "communicator dp:" in str(refused)


@pytest.mark.parametrize("lost", [1, 0])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_daemon_that_is_killed_while_a_collective_is_under_way(tmp_path: Path, lost: int) -> None:
    with job_with(tmp_path, f"stops rank=1 operation={WARM_UP + PER_STEP}") as (nodes, ranks):
        there = Asking([ranks[lost]], 1, again=True)
        there.wait_until_asked()
        others = asked_until_stuck([ranks[1 - lost]], 1)
        began = time.monotonic()
        nodes.kill(lost)
        check_errors(others.heard(), NodeLost, node=f"node{lost}", ranks=[lost], since=began, within_s=PROCESS_S)
        nodes.start_again(lost)
        again = Asking([ranks[1 - lost]], 1, again=True)
        reports = {each.rank: each.result for each in [*there.heard(), *again.heard()]}
        check_sync(ranks, 1, [reports[rank.rank] for rank in ranks])


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_worker_that_is_killed_while_a_collective_is_under_way_is_replaced(tmp_path: Path) -> None:
    with job_with(tmp_path, f"stops rank=1 operation={WARM_UP + PER_STEP}") as (nodes, ranks):
        asking = asked_until_stuck(ranks, 1)
        (worker,) = workers_of(nodes, 1)
        os.kill(worker, signal.SIGKILL)
        for heard in asking.heard():
            assert isinstance(heard.result, StepFailed | NodeLost), heard
        sync_again(ranks, 1)
        (other,) = workers_of(nodes, 1)
        assert other != worker


@pytest.mark.parametrize("lost", [1, 0])
@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_daemon_that_comes_back_between_steps_has_no_communicators_and_all_build_them_anew(
    tmp_path: Path, lost: int
) -> None:
    with job_with(tmp_path, "") as (nodes, ranks):
        nodes.kill(lost)
        nodes.start_again(lost)
        sync_again(ranks, 1)
        sync_again(ranks, 2)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_versions_that_differ_are_refused_with_both_nodes_and_both_versions(tmp_path: Path) -> None:
    with (
        Nodes(tmp_path, 2, *WITH_NCCL, before={1: with_faults("", "22907")}) as nodes,
        job_over(nodes, 1, kind=with_layout(one)) as ranks,
    ):
        for refused in on_all(ranks, SyncRank.declare):
            assert isinstance(refused, NodeRefused), refused
            assert "node node1 has NCCL 2.29.7, and node node0 has NCCL 2.28.9" in str(refused)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_node_whose_gradients_travel_otherwise_is_refused_with_both_settings(tmp_path: Path) -> None:
    with (
        Nodes(tmp_path, 2, more={0: WITH_NCCL}) as nodes,
        job_over(nodes, 1, kind=with_layout(one)) as ranks,
    ):
        for refused in on_all(ranks, SyncRank.declare):
            assert isinstance(refused, PlanMismatch), refused
            assert "cpu_gradients is nccl on node 'node0' and sockets on node 'node1'" in str(refused)


@pytest.mark.parametrize(
    ("library", "wrong"), [("/nowhere/libnccl.so.2", "cannot be loaded"), (str(LIBRARY), "is NCCL 2.28.7")]
)
def test_a_library_that_cannot_be_used_is_named_when_a_plan_needs_it(tmp_path: Path, library: str, wrong: str) -> None:
    libraries = {node: ("--nccl-library", name) for node, name in enumerate((str(LIBRARY), library))}
    with (
        Nodes(
            tmp_path, 2, "--nccl-cpu-gradients", "nccl", more=libraries, before={1: with_faults("", "22807")}
        ) as nodes,
        job_over(nodes, 1, kind=with_layout(one)) as ranks,
    ):
        for refused in on_all(ranks, SyncRank.declare):
            assert isinstance(refused, UnsupportedPlacement), refused
            assert library in str(refused)
            assert wrong in str(refused)
            assert "[nccl] library" in str(refused)
        logged = nodes.daemons[1].wait_for_log("epoch does not begin job=job ")["msg"]
        assert library in logged
        assert wrong in logged


def test_gradients_of_cpus_need_a_library_that_was_named() -> None:
    for library in ("", "off"):
        result = run_command("serve", "--nccl-cpu-gradients", "nccl", "--nccl-library", library)
        assert result.returncode != 0
        assert "nccl.cpu_gradients" in result.stderr
        assert "nccl.library" in result.stderr


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_rank_that_comes_back_finds_the_communicators_that_there_were(tmp_path: Path) -> None:
    """The fault of the third step's operation comes only if operations are counted on from before."""
    faults = with_faults(f"error rank=1 operation={WARM_UP + 2 * PER_STEP}")
    with (
        Nodes(tmp_path, 2, *WITH_NCCL, before=faults) as nodes,
        job_over(nodes, 2, kind=with_layout(one)) as ranks,
    ):
        whole(on_all(ranks, SyncRank.declare))
        check_sync(ranks, 0, whole(on_all(ranks, lambda rank: rank.step(0))))
        ranks[3].client.close()
        forming = "the epoch goes on without the rank"
        wait_for(lambda: ranks[0].client.status()["jobs"][0]["state"] == "forming", forming)
        ranks[3] = type(ranks[3])(nodes, "job", 3, 2, 4)

        def go_on(rank: SyncRank) -> object:
            if rank is ranks[3]:
                rank.declare()
            return rank.step_until_done(1)

        check_sync(ranks, 1, whole(on_all(ranks, go_on)))
        for heard in Asking(ranks, 2).heard():
            assert isinstance(heard.result, NodeLost), heard
            assert "communicator dp:" in str(heard.result)
