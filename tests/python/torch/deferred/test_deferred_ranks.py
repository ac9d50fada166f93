"""`defer=True` in ranks that are processes, at a real daemon: they exit, and the daemon is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradsync.torch._reduced import _deferral

WAIT_S = 60.0
SCRIPT = """
import ctypes, os, sys, torch, gradsync.torch as gst
address, rank, world_size, then = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
gst.init(model, address=address, job="j", rank=rank, world_size=world_size, weights_every=0, defer=True,
         check_weights=False)
model(torch.randn(5, 4)).sum().backward()
if rank == 0:
    gst.clip_grad_norm_(model.parameters(), 0.5)
print("clipped", flush=True)
if then != "exit":
    sys.stdin.readline()
if then == "look":
    assert ctypes.CDLL(os.environ["GRADSYNC_KERNELS"]).gradsync_emulation_wait() == 0
    print("zeros" if not any(p.grad.any() for p in model.parameters()) else "others", flush=True)
    try:
        gst.clip_grad_norm_(model.parameters(), 0.5)
    except gst.DeferredClipFailed as error:
        print("raised", error.step, flush=True)
"""
LIMIT_S = 2.0  # the daemon's deadline of a step in the tests below


class TestProcesses:
    """Ranks that are processes, at a real daemon: rank 0 clips, and rank 1 takes part in no step."""

    @pytest.fixture
    def address(self, emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
        for name in ("STEP_MS", "FIRST_STEP_MS"):
            monkeypatch.setenv(f"GRADSYNC_DEADLINES_{name}", str(int(1000 * LIMIT_S)))
        monkeypatch.setenv("GRADSYNC_KERNELS", str(emulated_kernels))
        self.daemon = request.getfixturevalue("restartable_daemon")
        return str(self.daemon.address)

    @pytest.fixture
    def start(self, address: str) -> Iterator[Any]:
        started: list[subprocess.Popen[str]] = []

        def run(rank: int, world_size: int, then: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", SCRIPT, address, str(rank), str(world_size), then]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen(command, text=True, env=os.environ.copy(), **pipes))  # type: ignore[call-overload]
            return started[-1]

        yield run
        for process in started:
            process.kill()
            process.communicate()

    def test_an_interpreter_that_exits_waits_for_its_step(self, start: Any) -> None:
        out, err = start(0, 1, "exit").communicate(timeout=WAIT_S)
        assert (out, err) == ("clipped\n", "")

    @pytest.mark.training
    def test_an_interpreter_that_exits_loses_no_error(self, start: Any) -> None:
        start(1, 2, "stay")
        process = start(0, 2, "exit")
        out, err = process.communicate(timeout=WAIT_S)
        assert out == "clipped\n"
        assert "step 0 failed after its clip had returned (defer=True), its gradients become zeros: " in err
        assert process.returncode == 0

    @pytest.mark.training
    def test_a_step_that_another_rank_does_not_make_ends_by_the_deadline(self, start: Any) -> None:
        start(1, 2, "stay")
        process = start(0, 2, "look")
        out, err = process.communicate("\n", timeout=WAIT_S)
        assert out.split("\n")[:3] == ["clipped", "zeros", "raised 0"]
        assert "step 0 failed" in err
        assert "rank 1" in err

    @pytest.mark.training
    def test_a_daemon_that_is_killed_releases_the_stream_within_the_deadline(self, start: Any) -> None:
        start(1, 2, "stay")
        process = start(0, 2, "look")
        assert process.stdout.readline() == "clipped\n"
        self.daemon.kill()
        began = time.monotonic()
        out, _ = process.communicate("\n", timeout=WAIT_S)
        assert out.split("\n")[:2] == ["zeros", "raised 0"]
        assert time.monotonic() - began < LIMIT_S + _deferral._MARGIN_S + 10
