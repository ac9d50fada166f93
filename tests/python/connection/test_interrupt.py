"""Ctrl-C in a call that waits for a daemon that does not answer: nothing on the way out waits for it again.

Each program is interrupted by a signal that another thread than the waiting one receives, which is the worst case.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = str(Path(__file__).parents[1])
SILENT = """
import signal, sys, threading
from pathlib import Path

import fake_daemon
import gradsync
from fake_daemon import NO_REPLY, FakeDaemon

fake_daemon.WAIT_S = 1000
# Whoever waits for an answer of the silent daemon waits longer than the test.
gradsync._job.QUICK_S = gradsync._step._declaring.QUICK_S = gradsync._client._QUICK_S = 1000

daemon = FakeDaemon(Path(sys.argv[1]))
TENSORS = [gradsync.Tensor("a", (4,))]

def interrupt_at(method):
    # From `method` on the daemon says nothing any more.
    def silence(params):
        for name in ("job.detach", "job.pause", "buffers.release", "status.get"):
            daemon.script[name] = lambda params: NO_REPLY
        return NO_REPLY

    def signal_when_it_came():
        daemon.wait_for(method)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    daemon.script[method] = silence
    threading.Thread(target=signal_when_it_came).start()
"""


def run(body: str, folder: Path) -> str:
    program = f"import sys; sys.path.insert(0, {HERE!r})\n" + SILENT + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", ["job.attach", "buffers.allocate", "gradients.declare", "step.finish"])
def test_in_each_call_of_a_rank(method: str, tmp_path: Path) -> None:
    body = f"""
    interrupt_at({method!r})
    try:
        with gradsync.connect(daemon.path) as client:
            grads = client.attach(job="j", rank=0, world_size=1).declare(TENSORS)
            grads.ready("a")
            grads.finish()
    except KeyboardInterrupt:
        print("interrupted")
        daemon.stop()
    """
    assert run(body, tmp_path) == "interrupted\n"


def test_while_a_job_is_paused(tmp_path: Path) -> None:
    body = """
    try:
        with gradsync.connect(daemon.path) as client:
            job = client.attach(job="j", rank=0, world_size=1)
            with job.pause():
                interrupt_at("status.get")
                client.status()
    except KeyboardInterrupt:
        print("interrupted")
        daemon.stop()
    """
    assert run(body, tmp_path) == "interrupted\n"


@pytest.mark.training
@pytest.mark.parametrize("method", ["gradients.declare", "step.finish"])
@pytest.mark.parametrize("client", ["address=daemon.path", "client=gradsync.connect(daemon.path)"])
def test_in_the_torch_adapter(method: str, client: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = f"""
    import torch
    import gradsync.torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    interrupt_at({method!r})
    try:
        with gradsync.torch.attach(model, job="j", rank=0, world_size=1, {client}) as gs:
            model(torch.ones(1, 2)).sum().backward()
            gs.step(optimizer)
    except KeyboardInterrupt:
        assert all(p.grad is None for p in model.parameters())
        print("interrupted")
        daemon.stop()
    """
    assert run(body, tmp_path) == "interrupted\n"
