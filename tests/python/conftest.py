"""Fixtures shared by the client's tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_daemon import FakeDaemon
from real_daemon import RECONNECT, Ranks, binary

import gradsync
from gradsync import _job
from gradsync._session import _rank_session
from gradsync._step import _declaring
from gradsync._transport import _channel, _connection, _handshake

LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "GRADSYNC_COORDINATOR",
)
PATIENT_S = 40.0


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "PMI_", "PMIX_"))]
    for name in (*LAUNCHER, *others, "GRADSYNC_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def time_for_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits for a daemon as long as it takes. A test of one that does not answer says how long that is."""
    monkeypatch.setattr(_rank_session, "PATIENCE_S", PATIENT_S)
    monkeypatch.setattr(_channel, "_GRACE_S", PATIENT_S)
    monkeypatch.setattr(_handshake, "_SHORTEST_S", PATIENT_S)
    monkeypatch.setattr(_connection, "_HANDSHAKE_S", PATIENT_S)
    monkeypatch.setattr(_connection, "_CLOSE_S", PATIENT_S)
    monkeypatch.setattr(_declaring, "_SHORTEST_S", PATIENT_S)
    monkeypatch.setattr(_job, "_GLANCE_S", PATIENT_S)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A real daemon for one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", binary())
        patch.setenv(*RECONNECT)
        with gradsync.connect(spawn=True, timeout=PATIENT_S) as client:
            yield client.address


@pytest.fixture
def ranks(address: str) -> Ranks:
    return Ranks(address)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path)
    yield fake
    fake.stop()


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[gradsync.Client]:
    with gradsync.connect(daemon.path) as client:
        yield client


@pytest.fixture
def job(client: gradsync.Client) -> gradsync.Job:
    return client.attach(job="j", rank=0, world_size=1)
