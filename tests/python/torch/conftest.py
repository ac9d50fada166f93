"""`ranks`: runs a function as N ranks, each a thread of this process, on the loopback fake and on a real daemon.

`daemon` and `norms`: a fake daemon of one rank, which is left after the test, and its answers to rows.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from drop_ins import Norms
from emulated import Stream
from fake_daemon import FakeDaemon
from loopback import LoopbackClient, World
from real_daemon import RECONNECT, built_library

import gradsync
import gradsync.torch as gst
from gradsync._launch._spawn import find_binary
from gradsync.errors import ConnectionFailed
from gradsync.torch._statistics import _measurer
from gradsync.torch._statistics._kernels import KernelLibrary

JOIN_S = 100.0
_names = itertools.count()


class Ranks:
    """`ranks(n, body)` → the n results of `body(rank, attach)`; the first exception of a rank is raised."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self.clients: list = []

    def outcomes(self, count: int, body) -> list:
        """The results, exceptions among them."""
        world = World(count)
        job = f"test-{next(_names)}"
        results: list = [None] * count
        self.clients = [
            LoopbackClient(world) if self._address is None else gradsync.connect(self._address) for _ in range(count)
        ]

        def run(rank: int) -> None:
            def attach(model, **options):
                options = {"client": self.clients[rank], "job": job, "rank": rank, "world_size": count} | options
                if self._address is None:
                    options = {"weights_every": 0} | options  # which a daemon does, in a job of its own
                return gst.attach(model, **options)

            try:
                results[rank] = body(rank, attach)
            except BaseException as error:
                results[rank] = error
            finally:
                world.leave(rank) if isinstance(results[rank], BaseException) else None
                self.clients[rank].close()

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), "a rank hangs"
        return results

    def __call__(self, count: int, body) -> list:
        results = self.outcomes(count, body)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def _daemon_binary() -> str | None:
    try:
        return find_binary()
    except ConnectionFailed:
        built = Path(__file__).parents[3] / "build" / "cpu-release" / "bin" / "gradsyncd"
        complete = built.exists() and subprocess.run([built, "serve", "--help"], capture_output=True).returncode == 0
        return str(built) if complete else None


@pytest.fixture(scope="session")
def daemon_binary() -> str:
    binary = _daemon_binary()
    if binary is None:
        pytest.skip("no gradsyncd binary: build it, or set GRADSYNCD")
    return binary


@pytest.fixture(scope="session")
def real_daemon(daemon_binary):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", daemon_binary)
        patch.setenv(*RECONNECT)
        with gradsync.connect(spawn=True, timeout=JOIN_S) as client:
            yield client.address


@pytest.fixture(params=["loopback", "daemon"])
def ranks(request, monkeypatch):
    monkeypatch.delenv("GRADSYNC_MODE", raising=False)
    return Ranks(request.getfixturevalue("real_daemon") if request.param == "daemon" else None)


@pytest.fixture
def real_ranks(real_daemon, monkeypatch):
    """For what only a daemon does."""
    monkeypatch.delenv("GRADSYNC_MODE", raising=False)
    return Ranks(real_daemon)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path)
    yield fake
    gst.close()
    fake.stop()


@pytest.fixture
def norms(daemon: FakeDaemon) -> Norms:
    return Norms(daemon)


class RestartableDaemon:
    """`gradsyncd serve` at one address; the second life begins when the first was killed."""

    def __init__(self, binary: str, address: Path) -> None:
        self.address = str(address)
        self._binary = binary
        self._barrier = threading.Barrier(2, action=self._restart)
        self.start()

    def start(self) -> None:
        command = [self._binary, "serve", "--socket", self.address, "--health", "127.0.0.1:0"]
        env = os.environ | dict([RECONNECT])
        self._process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:  # ends when the process does
            if "serving" in line:
                return
        raise AssertionError("the daemon did not come up")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(JOIN_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _restart(self) -> None:
        self.kill()
        self.start()

    def restart_when_all_are_here(self) -> None:
        """Called by both ranks: the daemon is killed and started between their calls and their returns."""
        self._barrier.wait(JOIN_S)


@pytest.fixture
def restartable_daemon(real_daemon, tmp_path):
    daemon = RestartableDaemon(_daemon_binary(), tmp_path / "gradsync.sock")
    yield daemon
    daemon.kill()


@pytest.fixture
def ranks_at(monkeypatch):
    """`Ranks` of a daemon of the test's own."""
    monkeypatch.delenv("GRADSYNC_MODE", raising=False)
    return Ranks


@pytest.fixture(scope="session")
def emulated_kernels() -> Path:
    """The kernels of GPUs over an emulation, built with the daemon: memory of the CPU stands for that of a device."""
    return built_library("libgradsync_kernels_emulated.so")


@pytest.fixture
def stream(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Clips are by these kernels from now on."""
    found = KernelLibrary(emulated_kernels)
    monkeypatch.setattr(_measurer, "kernel_library", lambda: found)
    monkeypatch.delenv("GRADSYNC_MODE", raising=False)
    return Stream(emulated_kernels)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
