"""Refusals and failures of a real gradsyncd, and what a client does about them."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from real_daemon import JOIN_S, SUM, Ranks, all_ready, binary

import gradsync
from gradsync import Partial, Replicate, Tensor
from gradsync.errors import (
    DeclareTimeout,
    InvalidDeclaration,
    PlanMismatch,
    RankInUse,
    RankLost,
    RpcError,
    StepMismatch,
    StepTimeout,
)


def test_ranks_that_declare_different_things_are_told_the_first_difference(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        job.declare([Tensor("same", (2,), placements=SUM), Tensor("w", (2 + rank,), placements=SUM)])

    for error in ranks.outcomes(2, body):
        assert isinstance(error, PlanMismatch)
        assert "w" in str(error)


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (Tensor("w", (2,)), InvalidDeclaration),
        (Tensor("w", (2,), placements={"tp": Replicate()}), InvalidDeclaration),
        (Tensor("w", (2,), placements={"dp": Partial("mean") >> Replicate()}, divisor=2), InvalidDeclaration),
        (
            Tensor("w", (2,), placements={"dp": Partial() >> gradsync.Shard(0)}, split_order=("tp",)),
            InvalidDeclaration,
        ),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_path(tensor: Tensor, error: type[RpcError], ranks: Ranks) -> None:
    (mine, _) = ranks.outcomes(2, lambda rank, job: job.declare([tensor]) if rank == 0 else None)
    assert isinstance(mine, error), mine
    assert mine.path is not None
    assert mine.path.startswith("tensors[0]")


@pytest.mark.parametrize(
    "wrong",
    [Tensor("w", (2,), placements={"tp": Replicate()}), Tensor("n" * 600, (2,), placements=SUM)],
    ids=["checked", "read"],
)
def test_a_refused_declaration_is_told_at_once_to_every_rank(wrong: Tensor, ranks: Ranks) -> None:
    told = threading.Event()

    def body(rank: int, job: gradsync.Job) -> RpcError:
        tensor = wrong if rank == 0 else Tensor("w", (2,), placements=SUM)
        with pytest.raises(RpcError) as refused:
            job.declare([tensor], timeout=JOIN_S / 2)
        if rank == 1:
            told.set()
        assert told.wait(JOIN_S)  # rank 0 stays until rank 1 has heard of it
        return refused.value

    mine, other = ranks.outcomes(2, body)
    assert mine.path is not None
    assert mine.path.startswith("tensors[0]")
    assert isinstance(other, type(mine)), other
    assert other.rank == 0
    assert "the declaration of rank 0 is refused: " in str(other)


def test_a_declaration_without_the_others_times_out_and_names_them(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> None:
        if rank == 0:
            job.declare([Tensor("w", (2,), placements=SUM)], timeout=0.2)

    error, _ = ranks.outcomes(2, body)
    assert isinstance(error, DeclareTimeout)
    assert 1 in error.ranks


def test_ranks_that_disagree_on_the_step_are_told_and_may_try_again(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> int:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        all_ready(grads)
        with pytest.raises(StepMismatch):
            grads.finish(step=rank)
        all_ready(grads)
        return grads.finish(step=7).step

    assert ranks(2, body) == [7, 7]


def test_a_step_without_the_others_times_out_for_all_and_may_be_tried_again(ranks: Ranks) -> None:
    failed = threading.Event()

    def body(rank: int, job: gradsync.Job) -> Any:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        all_ready(grads)
        if rank == 0:
            with pytest.raises(StepTimeout) as caught:
                grads.finish(timeout=0.2)
            failed.set()
            assert caught.value.ranks == (1,)
        else:
            assert failed.wait(JOIN_S)
            with pytest.raises(StepTimeout):  # the recorded outcome of the attempt it belongs to
                grads.finish()
        all_ready(grads)
        return grads.finish().step

    assert ranks(2, body) == [0, 0]


def test_a_live_rank_of_another_process_is_in_use(ranks: Ranks, address: str) -> None:
    program = (
        "import sys, gradsync\n"
        "client = gradsync.connect(sys.argv[1])\n"
        "try:\n    client.attach(job=sys.argv[2], rank=0, world_size=1)\n"
        "except gradsync.errors.RankInUse as error:\n    print('in use', error.hint != '')\n"
        "client.close()\n"
    )

    def body(rank: int, job: gradsync.Job) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, address, job.name], capture_output=True, text=True, check=True
        ).stdout

    assert ranks(1, body) == ["in use True\n"]
    assert RankInUse.KIND == "rank_in_use"


VICTIM = """
import sys, gradsync
from gradsync import Partial, Replicate, Tensor
client = gradsync.connect(sys.argv[1])
job = client.attach(job=sys.argv[2], rank=1, world_size=2)
grads = job.declare([Tensor("w", (2,), placements={"dp": Partial("sum") >> Replicate()})])
for _ in range(int(sys.argv[3])):
    grads.input("w").numpy()[:] = 1
    grads.ready("w")
    print(grads.finish().step, flush=True)
print("waiting", flush=True)
sys.stdin.read()
client.close()
"""


def start_victim(address: str, job: str, steps: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", VICTIM, address, job, str(steps)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_rank_is_named_and_a_new_process_takes_its_place(address: str) -> None:
    name = f"test-{secrets.token_hex(4)}"
    with gradsync.connect(address) as client, start_victim(address, name, 1) as victim:
        job = client.attach(job=name, rank=0, world_size=2)
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        grads.input("w").numpy()[:] = 1
        grads.ready("w")
        assert grads.finish().step == 0
        assert victim.stdout is not None
        assert [victim.stdout.readline() for _ in range(2)] == ["0\n", "waiting\n"]
        grads.ready("w")
        victim.send_signal(signal.SIGKILL)
        with pytest.raises(RankLost) as caught:
            grads.finish()
        assert caught.value.ranks == (1,)
        assert job.epoch == caught.value.epoch
        victim.wait(JOIN_S)
        with start_victim(address, name, 1) as heir:
            grads.input("w").numpy()[:] = 2
            grads.ready("w")
            report = grads.finish()
            assert (report.step, grads.output("w").numpy().tolist()) == (1, [3, 3])
            heir.communicate("", timeout=JOIN_S)


def test_a_lost_connection_is_resumed_in_the_middle_of_a_job(ranks: Ranks) -> None:
    def body(rank: int, job: gradsync.Job) -> list[int]:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        steps = []
        for step in range(6):
            grads.input("w").numpy()[:] = 1
            if step % 2 == rank:
                job.client._channel._connection._websocket.socket.shutdown(2)  # SHUT_RDWR: as if the connection broke
            grads.ready("w")
            steps.append(grads.finish().step)
            assert grads.output("w").numpy().tolist() == [2, 2]
        return steps

    assert ranks(2, body) == [list(range(6))] * 2


def test_a_finish_that_waits_survives_its_connection(ranks: Ranks) -> None:
    waiting = threading.Event()

    def body(rank: int, job: gradsync.Job) -> tuple[int, list[float]]:
        grads = job.declare([Tensor("w", (2,), placements=SUM)])
        grads.input("w").numpy()[:] = rank + 1
        grads.ready("w")
        if rank == 1:
            assert waiting.wait(JOIN_S)
            peers[0].client._channel._connection._websocket.socket.shutdown(2)
            peers[0].client.status()  # rank 0 is back, and its finish was sent again before this
        else:
            peers.append(job)
            watcher = threading.Thread(target=watch, args=(job,))
            watcher.start()
        done = grads.finish().step, grads.output("w").numpy().tolist()
        if rank == 0:
            watcher.join(JOIN_S)
        return done

    def watch(job: gradsync.Job) -> None:
        with gradsync.connect(job.client.address) as other:
            while not waiting.is_set():
                for entry in other.status()["jobs"]:
                    if entry["job"] == job.name and any(
                        r["rank"] == 0 and r["waiting_in"] == "step.finish" for r in entry["ranks"]
                    ):
                        waiting.set()

    peers: list[gradsync.Job] = []
    assert ranks(2, body) == [(0, [3, 3])] * 2


def test_spawn_ends_its_daemon_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    with gradsync.connect(spawn=True, timeout=60) as client:
        pid = client.server["pid"]
        path = client.address
        job = client.attach(world_size=1)
        grads = job.declare([Tensor("w", (2,))])
        grads.input("w").numpy()[:] = [3, 4]
        grads.ready("w")
        assert grads.finish().norm == 5
    assert not os.path.exists(path)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_killed_process_takes_its_spawned_daemon_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    program = (
        "import gradsync, os, sys\n"
        "client = gradsync.connect(spawn=True)\n"
        "print(client.server['pid'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        daemon = os.pidfd_open(int(trainer.stdout.readline()))
        trainer.kill()
        ended, _, _ = select.select([daemon], [], [], JOIN_S)
        os.close(daemon)
        assert ended
