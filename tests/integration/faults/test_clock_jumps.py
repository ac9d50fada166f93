"""A wall clock that jumps, forwards and backwards by years, changes no step and no deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon
from raw import RawRank, declare_all
from walkers import Walkers

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
JUMPS = ["+3650d", "-3650d", "+1d", "-1s", "+7300d", "+0"]


class WallClock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.jump("+0")

    def jump(self, offset: str) -> None:
        self._path.write_text(offset + "\n")


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WallClock]:
    """Daemons that start in the test have this clock."""
    if LIBRARY is None:
        pytest.skip("needs the Debian package faketime")
    wall = WallClock(tmp_path / "offset")
    for name, value in {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "offset"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return wall


def starting(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Daemon:
    """Nothing but the daemon has the clock."""
    daemon = Daemon(*arguments)
    daemon.__enter__()
    monkeypatch.delenv("LD_PRELOAD")
    return daemon


def year(daemon: Daemon, job: str) -> int:
    """The year in the log line that the end of an epoch writes."""
    with RawRank(daemon.socket, job, 0, 1) as rank:
        declare_all([rank], ["w"], 4)
    return int(daemon.wait_for_log(f"epoch ended job={job} ")["ts"][:4])


def test_ranks_step_on_over_jumps(clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = starting(monkeypatch)
    try:
        usual = year(daemon, "now")
        with Walkers(daemon.socket) as walkers:
            for index, offset in enumerate(JUMPS):
                clock.jump(offset)
                found = year(daemon, f"job-{index}")
                assert found - usual in {"+3650d": (9, 10), "-3650d": (-10, -9), "+7300d": (19, 20)}.get(
                    offset, (-1, 0, 1)
                ), "the clock of the daemon has not jumped"
            took, wrong = walkers.stop()
        assert took
        assert wrong == 0
    finally:
        daemon.__exit__(None, None, None)


@pytest.mark.training
@pytest.mark.parametrize("offset", ["+3650d", "-3650d"])
def test_a_deadline_comes_after_a_jump(clock: WallClock, monkeypatch: pytest.MonkeyPatch, offset: str) -> None:
    daemon = starting(monkeypatch, "--deadlines-first-step-ms", "2000")
    try:
        with RawRank(daemon.socket, "job", 0, 2) as first, RawRank(daemon.socket, "job", 1, 2) as second:
            declare_all([first, second], ["w"], 4)
            asked = first.ask_finish(0)
            clock.jump(offset)
            error = first.finished(asked)
            assert error["data"]["kind"] == "step_timeout"
            assert 0 < error["data"]["waited_s"] < 1e6, "the wall clock moved it"
    finally:
        daemon.__exit__(None, None, None)
