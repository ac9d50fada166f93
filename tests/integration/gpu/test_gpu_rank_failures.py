"""A trainer that is killed in each state of its memory on a GPU, and one that frees memory too early.

The GPU is emulated, as in test_gpu_buffers.py; every process is real, and so are its signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import TIMES, Daemon
from gpu_ranks import GPUS, MEMORY, GpuRank, all_do, mappings_in, options, until, workers_of
from gpu_scene import LARGE, LATEST_S, Scene, has_command, mapped_by, pair, stop, worker_for

import gradsync

pytest.importorskip("torch")

State = Callable[[Scene, "Victim"], None]


def memory_of(process: int) -> set[str]:
    """The inodes of the emulated memory that a process has mapped."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        return {line.split()[4] for line in lines if MEMORY in line}
    return set()


class Victim:
    """Rank 1 of the job that something happens to."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.memory: set[str] = set()
        self.is_waited_for = False  # the other rank's declaration waits for the next process

    def note_memory(self) -> None:
        self.memory |= memory_of(self._scene.hurt[1].pid)

    def dies(self, worker: int) -> None:
        """While the worker stands still, which goes on then."""
        self.note_memory()
        assert self.memory
        self._scene.hurt[1].kill()
        os.kill(worker, signal.SIGCONT)

    def is_let_go(self) -> None:
        workers = workers_of(self._scene.daemon.process.pid)
        until(lambda: not any(self.memory & memory_of(worker) for worker in workers), "nothing of it is mapped")


def survivor(scene: Scene) -> dict[str, Any]:
    """What the other rank is told, in time."""
    began = time.monotonic()
    scene.others_go_on()
    answer = scene.hurt[0].answer()
    assert time.monotonic() - began < LATEST_S
    return answer


def told_that_it_was_lost(scene: Scene) -> None:
    answer = survivor(scene)
    assert (answer["kind"], answer["ranks"]) == ("RankLost", [1]), answer


def all_wait_in_declare(scene: Scene) -> bool:
    with gradsync.connect(scene.daemon.socket) as client:
        (job,) = (job for job in client.status()["jobs"] if job["job"] != "beside")
    return [rank["waiting_in"] for rank in job["ranks"]] == ["gradients.declare"] * 2


def while_mapping(scene: Scene, victim: Victim) -> None:
    """Before the other rank has declared: that waits for whoever comes."""
    worker = scene.stopped_before_a_command("declare", device="cuda")
    victim.dies(worker)
    victim.is_waited_for = True
    scene.others_go_on()


def while_loading(scene: Scene, victim: Victim) -> None:
    assert all("registered" in answer for answer in all_do(scene.hurt, "declare", device="cuda", halts=True))
    worker = scene.stopped_before_a_command("go on")  # any line
    until(lambda: all_wait_in_declare(scene), "both have declared")
    victim.dies(worker)
    told_that_it_was_lost(scene)


def while_idle(scene: Scene, victim: Victim) -> None:
    worker = scene.worker()
    stop(worker)
    scene.hurt[0].tell("step", seed=1)
    victim.dies(worker)
    told_that_it_was_lost(scene)


def while_stepping(scene: Scene, victim: Victim) -> None:
    assert all("digest" in answer for answer in all_do(scene.hurt, "declare", device="cuda", large=LARGE))
    worker = scene.stopped_before_a_command("step", seed=1)
    os.kill(worker, signal.SIGCONT)
    until(lambda: not has_command(worker), "it works on the bucket")
    stop(worker)
    victim.dies(worker)
    told_that_it_was_lost(scene)


def while_closing(scene: Scene, victim: Victim) -> None:
    """The ranks have left, and their memory is yet to be closed."""
    worker = scene.worker()
    stop(worker)
    victim.note_memory()
    assert all_do(scene.hurt, "detach") == [{}, {}]
    until(lambda: has_command(worker), "the memory is to be closed")
    victim.dies(worker)
    scene.others_go_on()
    assert scene.hurt[0].order("attach") == {}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(*options()) as running:  # its deadlines are long: no worker is killed while it stands still
        yield running


@pytest.mark.parametrize(
    ("state", "times"),
    [
        (while_stepping, 1),
        # The other rank is told after the ten seconds that a successor has.
        pytest.param(while_loading, 3, marks=[pytest.mark.long, pytest.mark.rare]),
        *(
            pytest.param(state, TIMES, marks=pytest.mark.long)
            for state in (while_mapping, while_idle, while_stepping, while_closing)
        ),
    ],
)
def test_a_trainer_that_is_killed_is_named_its_memory_let_go_and_another_takes_its_place(
    daemon: Daemon, state: State, times: int
) -> None:
    name = f"{state.__name__}-{times}"
    with contextlib.ExitStack() as stack:
        others = stack.enter_context(pair(daemon.socket, "beside", GPUS[1]))
        ranks = stack.enter_context(pair(daemon.socket, name))
        scene = Scene(daemon, ranks, others)
        scene.declared()
        for _ in range(times):
            worker = scene.worker()
            victim = Victim(scene)
            state(scene, victim)
            victim.is_let_go()
            ranks[1] = stack.enter_context(GpuRank(daemon.socket, name, 1, 2))
            if victim.is_waited_for:
                ranks[1].tell("declare", device="cuda")
                assert all("digest" in rank.answer() for rank in ranks)
            else:
                scene.declared()
            assert all_do(ranks, "step", seed=0) == scene.right
            assert scene.worker() == worker, "it is not the worker that died"
            until(lambda: mapped_by(daemon) == 4, "the memory of four ranks is mapped, and no more")
            scene.others_go_on()
    until(lambda: mapped_by(daemon) == 0, "everything is unmapped")


@pytest.mark.training
def test_memory_that_is_freed_while_it_is_registered_stays_what_it_was_until_it_is_closed(daemon: Daemon) -> None:
    with pair(daemon.socket, "right") as ranks:
        all_do(ranks, "declare", device="cuda")
        right = all_do(ranks, "step", seed=3)[0]
    with pair(daemon.socket, "freed") as ranks:
        all_do(ranks, "declare", device="cuda")
        worker = worker_for(daemon, GPUS[0])
        before = mapped_by(daemon)
        ranks[0].tell("step", seed=3)
        ranks[1].tell("step", seed=3, frees=True)
        assert ranks[0].answer() == right
        assert ranks[1].answer()["norm"] == right["norm"]
        assert mappings_in(ranks[1].pid) == 0, "it is freed"
        assert mapped_by(daemon) == before, "and still mapped"
        assert ranks[1].order("detach") == {}
        until(lambda: mapped_by(daemon) == before - 1, "it is closed")
        assert worker_for(daemon, GPUS[0]) == worker
