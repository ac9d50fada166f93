"""A worker of a GPU that stops or is killed, in each state that it can be in, and one whose GPU faults.

The GPU is emulated, as in test_gpu_buffers.py; the worker's process is real, and so are its signals."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, TIMES, Daemon
from gpu_ranks import GPUS, all_do, options, until, workers_of
from gpu_scene import DEADLINES, LARGE, LATEST_S, MAP_MS, PLAN_MS, STEP_S, TOO_LATE, Scene, has_command, pair, stop

pytest.importorskip("torch")

Hurt = Callable[[int], None]


def hang(worker: int) -> None:
    """It stands still already; its supervisor has to find out."""


def kill(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


def while_mapping(scene: Scene, hurt: Hurt) -> int:
    worker = scene.stopped_before_a_command("declare", device="cuda")
    hurt(worker)
    answers = scene.answered() if hurt is hang else scene.answered_until_declared()
    # Where it dies, the other rank's memory may come after that, and be mapped by the next worker.
    refused = [answer for answer in answers if hurt is hang or "digest" not in answer]
    assert refused
    for answer in refused:
        assert answer["kind"] == "ImportRefused", answer
        said = f"did not answer the mapping of a buffer within {MAP_MS} ms" if hurt is hang else "ended by signal 9"
        assert said in answer["error"]
        assert "another worker takes its place" in answer["error"]
    return worker


def while_loading(scene: Scene, hurt: Hurt) -> int:
    assert all("registered" in answer for answer in all_do(scene.hurt, "declare", device="cuda", halts=True))
    worker = scene.stopped_before_a_command("go on")  # any line
    hurt(worker)
    for answer in scene.answered():
        if answer["kind"] in TOO_LATE and hurt is kill:
            assert re.search(TOO_LATE[answer["kind"]], answer["error"]), answer
            continue
        assert answer["kind"] == "StepFailed", answer
        said = (
            rf"did not answer the (un)?loading of a plan within {PLAN_MS} ms" if hurt is hang else "ended by signal 9"
        )
        assert re.search(said, answer["error"]), answer
        assert "another worker takes its place" in answer["error"]
    return worker


def while_idle(scene: Scene, hurt: Hurt) -> int:
    worker = scene.worker()
    stop(worker)
    hurt(worker)
    scene.told("step", seed=1, timeout=STEP_S)
    for answer in scene.answered():
        assert answer["kind"] == ("StepTimeout" if hurt is hang else "StepFailed"), answer
        assert ("the lane did not finish within" if hurt is hang else "ended by signal 9") in answer["error"]
    return worker


def while_stepping(scene: Scene, hurt: Hurt) -> int:
    assert all("digest" in answer for answer in all_do(scene.hurt, "declare", device="cuda", large=LARGE))
    worker = scene.stopped_before_a_command("step", seed=1, timeout=STEP_S)
    os.kill(worker, signal.SIGCONT)
    until(lambda: not has_command(worker), "it works on the bucket")
    stop(worker)
    hurt(worker)
    for answer in scene.answered():
        if hurt is hang and "did not answer the release of a buffer" in answer["error"]:
            continue  # of the declaration before, which it had not released when it was stopped
        assert answer["kind"] == ("StepTimeout" if hurt is hang else "StepFailed"), answer
    return worker


def while_closing(scene: Scene, hurt: Hurt) -> int:
    """The ranks have left: nobody waits for the worker, and its memory is let go all the same."""
    worker = scene.worker()
    stop(worker)
    assert all_do(scene.hurt, "detach") == [{}, {}]
    until(lambda: has_command(worker), "the memory is to be closed")
    hurt(worker)
    scene.others_go_on()
    until(lambda: worker not in workers_of(scene.daemon.process.pid), "the worker has ended")
    assert all_do(scene.hurt, "attach") == [{}, {}]
    return worker


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in it makes the device of its name fault (tests/kernels/simt/simt.hpp)."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def daemon(faults: Path) -> Iterator[Daemon]:
    with Daemon(*options(), *DEADLINES, before=("env", f"GRADSYNC_SIMT_FAULTS={faults}")) as running:
        yield running


@pytest.mark.parametrize(
    ("hurt", "times"),  # one that hangs takes its deadline each time
    [
        (kill, 1),
        pytest.param(kill, TIMES, marks=[pytest.mark.long, pytest.mark.rare]),
        pytest.param(hang, max(1, TIMES // 5), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("state", [while_mapping, while_loading, while_idle, while_stepping, while_closing])
def test_a_worker_that_is_hurt_costs_an_error_in_time_and_another_takes_its_place(
    daemon: Daemon, state: Callable[[Scene, Hurt], int], hurt: Hurt, times: int
) -> None:
    name = f"{state.__name__}-{hurt.__name__}"
    with pair(daemon.socket, "beside", GPUS[1]) as others, pair(daemon.socket, name) as ranks:
        scene = Scene(daemon, ranks, others)
        scene.declared()
        for _ in range(times):
            scene.is_well_again(state(scene, hurt))


FAULTS = {700: "look at Xid in dmesg", 214: "reset the GPU", 702: "watchdog"}
# How many launches go well before the fault; a step has three reductions and a clip.
CHOSEN = [(700, 0), (214, 3), (702, 1)]
OTHERS = [(code, launches) for code in FAULTS for launches in (0, 1, 3) if (code, launches) not in CHOSEN]


@pytest.mark.training
@pytest.mark.parametrize(
    ("code", "good_launches"), [*CHOSEN, *(pytest.param(*each, marks=pytest.mark.rare) for each in OTHERS)]
)
def test_a_gpu_that_faults_costs_an_error_with_its_number_and_another_worker_takes_its_place(
    daemon: Daemon, faults: Path, code: int, good_launches: int
) -> None:
    with pair(daemon.socket, "beside", GPUS[1]) as others, pair(daemon.socket, f"fault-{code}") as ranks:
        scene = Scene(daemon, ranks, others)
        scene.declared()
        worker = scene.worker()
        (faults / GPUS[0]).write_text(f"{code} {good_launches}")
        scene.told("step", seed=1)
        for answer in scene.answered():
            assert answer["kind"] == "StepFailed", answer
            assert f"the worker of the lane (pid {worker}) lost its device: " in answer["error"]
            assert f"(CUDA error {code})" in answer["error"]
            assert FAULTS[code] in answer["error"]
            assert "another worker takes its place" in answer["error"]
        assert not (faults / GPUS[0]).exists()
        scene.is_well_again(worker)


@pytest.mark.training
def test_a_daemon_ends_although_a_worker_hangs() -> None:
    with Daemon(*options(), *DEADLINES) as daemon, pair(daemon.socket, "job") as ranks:
        all_do(ranks, "declare", device="cuda")
        (worker,) = workers_of(daemon.process.pid)
        stop(worker)
        began = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - began < 2 * LATEST_S
        until(lambda: not Path(f"/proc/{worker}").exists(), "nothing is left of the worker")
