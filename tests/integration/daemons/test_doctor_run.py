"""A daemon that examines its node for a client: `gradsync doctor` beside a real daemon and an emulated driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, Daemon, clean_environment
from gpu_ranks import DRIVER, GPUS, GpuRank, options, until, workers_of


def command(daemon: Daemon) -> list[str]:
    return [sys.executable, "-m", "gradsync", "doctor", "--address", daemon.socket]


def environment(gpus: list[str]) -> dict[str, str]:
    return clean_environment(GRADSYNC_LIBCUDA=str(DRIVER), CUDA_VISIBLE_DEVICES=",".join(gpus))


def doctor(daemon: Daemon, gpus: list[str]) -> subprocess.CompletedProcess[str]:
    """`gradsync doctor` of a process that sees these GPUs."""
    return subprocess.run(
        command(daemon), env=environment(gpus), capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )


def test_the_daemon_tries_its_gpus_and_both_sides_see_the_same() -> None:
    with Daemon(*options()) as daemon:
        looked = doctor(daemon, GPUS)
        assert looked.returncode == 0, looked
        for gpu in GPUS:
            assert f"ok       a worker opened {gpu} and reached memory in " in looked.stdout
            assert f"ok       this process and the daemon both see {gpu}\n" in looked.stdout
        assert workers_of(daemon.process.pid) == [], "nothing of the examination is left"


def test_a_gpu_on_one_side_only_is_named() -> None:
    one = list(options())
    one[one.index("--gpu-devices") + 1] = GPUS[0]
    with Daemon(*one) as daemon:
        wider, other = doctor(daemon, GPUS), doctor(daemon, GPUS[1:])
    for looked in (wider, other):
        assert looked.returncode == 1, looked
        assert f"problem  this process sees {GPUS[1]}, and the daemon does not\n" in looked.stdout
        assert f"{GPUS[1]} and reached memory" not in looked.stdout, "the examination has the daemon's settings"
    assert f"note     the daemon sees {GPUS[0]}, and this process does not\n" in other.stdout


def test_a_daemon_without_gpus_is_well_for_a_process_without_one() -> None:
    with Daemon("--gpu-kernels", "off") as daemon:
        looked = doctor(daemon, [])
        assert looked.returncode == 0, looked
        assert "note     GPUs are switched off" in looked.stdout
        assert "note     this process sees no GPU: " in looked.stdout
        assert doctor(daemon, GPUS[:1]).returncode == 1


def test_a_job_goes_on_beside_an_examination() -> None:
    with Daemon(*options()) as daemon, GpuRank(daemon.socket, "job", 0, 1) as rank:
        assert "digest" in rank.order("declare", device="cuda")
        right = rank.order("step", seed=0)
        worker = workers_of(daemon.process.pid)
        assert doctor(daemon, GPUS).returncode == 0
        assert rank.order("step", seed=0) == right
        assert workers_of(daemon.process.pid) == worker


@contextlib.contextmanager
def examined(daemon: Daemon) -> Iterator[list[int]]:
    """The pids of an examination that stands still, while a client waits for it: its own, and of what it started."""
    with subprocess.Popen(
        command(daemon), env=environment(GPUS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as client:
        try:
            pids: list[int] = []

            def works() -> bool:
                pids[:] = workers_of(daemon.process.pid)
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    pids.extend(worker for doctor in pids[:1] for worker in workers_of(doctor))
                return len(pids) > 1

            until(works, "the examination has started a process")
            os.kill(pids[0], signal.SIGSTOP)
            yield pids
        finally:
            client.kill()


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_examination_ends_with_its_daemon(how: signal.Signals) -> None:
    with Daemon(*options()) as daemon, examined(daemon) as pids:
        daemon.process.send_signal(how)
        assert daemon.process.wait(DEADLINE_S) == (0 if how == signal.SIGTERM else -how)
        until(lambda: all(map(is_gone, pids)), "none of its processes is left")


def test_a_client_that_leaves_harms_nobody() -> None:
    with Daemon(*options()) as daemon:
        with examined(daemon) as pids:
            pass
        os.kill(pids[0], signal.SIGCONT)
        assert doctor(daemon, GPUS).returncode == 0
        until(lambda: all(map(is_gone, pids)), "none of its processes is left")
