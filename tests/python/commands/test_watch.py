"""`gradsync status --watch`: what it draws, and where it draws in colour."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from real_daemon import MEAN, binary
from rich.console import Console

import gradsync
from gradsync import Clip, Tensor
from gradsync._watch._history import History
from gradsync._watch._view import view

DEADLINE_S = 60.0
RANK = {
    "rank": 0,
    "state": "declared",
    "pid": 17,
    "waiting_in": "",
    "waited_s": 0.0,
    "paused": False,
    "arena_bytes": 3 << 20,
    "measured_by": "",
}


def job(**changed: Any) -> dict[str, Any]:
    return {
        "job": "llm",
        "uid": 1000,
        "world_size": 2,
        "state": "stepping",
        "reason": "waits for rank 1",
        "epoch": 3,
        "attempt": 8,
        "last_step": 7,
        "steps_committed": 8,
        "steps_failed": 0,
        "tensors": 4,
        "buckets": 2,
        "data_path": "arena",
        "last_commit_age_s": 0.25,
        "norm": 1.5,
        "threshold": 1.0,
        "clip": [],
        "communicators": [],
        "ranks": [RANK, {**RANK, "rank": 1, "state": "disconnected", "waiting_in": "step.finish", "waited_s": 12.0}],
        "absent": 0,
        "absent_ranks": [],
        **changed,
    }


def status(*jobs: dict[str, Any], incarnation: str = "a") -> dict[str, Any]:
    return {
        "version": "0.1.0",
        "incarnation": incarnation,
        "pid": 4711,
        "state": "serving",
        "uptime_s": 200.0,
        "jobs": list(jobs),
        "jobs_left_out": 0,
    }


def drawn(*answers: dict[str, Any], width: int = 100) -> str:
    """The last of the answers, which came a second apart."""
    history = History()
    for second, answer in enumerate(answers):
        history.add(answer, float(second))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(view(answers[-1], history))
        return str(console.export_text())


def test_a_job_is_shown_with_who_is_waited_for() -> None:
    text = drawn(status(job()))
    assert "gradsyncd 0.1.0  pid 4711  ● serving  up 3 min 20 s" in text
    for part in ("llm  ● stepping", "waits for rank 1", "7 (epoch 3, attempt 8)  8 done, 0 failed", "last 0.2 s ago"):
        assert part in text
    assert re.search(r"norm\s+1\.5  ▁  threshold 1  clipped", text)
    assert re.search(r"1   ● disconnected +17 +3\.0 MiB +12 s in step\.finish", text)


def test_steps_are_counted_and_norms_drawn_over_time() -> None:
    norms = [1.0, 2.0, 3.0, "NaN", 8.0]
    answers = [status(job(steps_committed=10 * n, norm=norm)) for n, norm in enumerate(norms, start=1)]
    text = drawn(*answers, answers[-1])
    assert "8 steps/s" in text, "40 steps in five seconds, in the last of which there was none"
    assert "▁▂▃!█" in text


def test_a_daemon_that_was_started_again_begins_anew() -> None:
    before, after = job(steps_committed=500, norm=9.0), job(steps_committed=3, norm=1.0)
    text = drawn(status(before), status(after, incarnation="b"))
    assert "steps/s" not in text
    assert re.search(r"norm\s+1  ▁  ", text)
    assert "steps/s" not in drawn(status(before), status(after)), "nor does a job that was, at a rate below zero"


def test_an_infinite_threshold_clips_nothing_and_large_jobs_are_cut() -> None:
    ranks = [{**RANK, "rank": n, "waiting_in": "step.finish", "waited_s": float(n)} for n in range(100)]
    clip = {
        "group": "all",
        "policy": "percentile",
        "watches": False,
        "steps": 50,
        "clip_rate": 0.1,
        "threshold": "Infinity",
        "threshold_lowest": 1.0,
        "threshold_highest": 2.0,
        "signs": ["it clips every step"],
    }
    wide = job(threshold="Infinity", ranks=ranks, clip=[clip], absent=3, absent_ranks=[100, 101, 102])
    text = drawn(status(wide))
    assert "no threshold" in text
    assert "clipped" not in text
    assert "! it clips every step" in text
    assert "68 more ranks wait less" in text
    assert "99 s in step.finish" in text
    assert "no process: rank 100, 101, 102" in text


def test_names_are_no_markup() -> None:
    assert "[red]llm[/red]" in drawn(status(job(job="[red]llm[/red]", reason="[bold]why")))


def test_without_jobs_it_says_when_there_is_one() -> None:
    assert "no jobs: a trainer appears here" in drawn(status())


# the command


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a daemon with a job that has taken steps."""
    monkeypatch.setenv("GRADSYNCD", binary())
    with gradsync.connect(spawn=True) as client:
        grads = client.attach("llm", 0, 1).declare(
            [Tensor("w", (4,), placements=MEAN)], clip={"all": Clip(max_norm=1.0)}
        )
        for step in range(3):
            grads.input("w").numpy()[:] = step + 1
            grads.ready("w")
            grads.finish()
        yield client.address


def run_watch(address: str, stdout: int, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gradsync", "status", "--watch", "--address", address]
    return subprocess.Popen(command, stdout=stdout, stderr=stdout, env={**os.environ, "TERM": "xterm", **environment})


def read_until(descriptor: int, wanted: bytes, times: int = 1) -> bytes:
    text, end = b"", time.monotonic() + DEADLINE_S
    while text.count(wanted) < times:
        assert select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0], text
        text += os.read(descriptor, 65536)
    return text


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_is_drawn_in_place_and_ctrl_c_ends_it(
    watched: str, environment: dict[str, str], coloured: bool
) -> None:
    ours, theirs = pty.openpty()
    process = run_watch(watched, theirs, **environment)
    os.close(theirs)
    text = read_until(ours, b"declared", times=2)
    process.send_signal(signal.SIGINT)
    read_until(ours, b"\x1b[?1049l")
    assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in text, "on a screen of its own, so that what was on the terminal comes back"
    assert (re.search(rb"\x1b\[[0-9;]*3[0-9]m", text) is not None) == coloured


def test_a_pipe_gets_plain_text_one_below_the_other(watched: str) -> None:
    ours, theirs = os.pipe()
    process = run_watch(watched, theirs)
    os.close(theirs)
    text = read_until(ours, b"declared", times=2)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    assert b"\x1b" not in text
    assert text.decode().count("llm  ● ready") == 2
