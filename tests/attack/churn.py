"""Short lives of trainers, one after the other: attach, declare, a step, leave, and one in two is killed.

`GRADSYNCD=… python tests/attack/churn.py [LIVES …]` prints what the daemon holds after so many lives, in MiB: resident
memory, and which part of it is heap and arenas of malloc ("anonymous"), the binary ("file") and shared memory."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from daemon import DEADLINE_S, get
from hostile import Daemon
from raw import RawRank, declare_all

NAMES, NUMEL = [f"layers.{index}.weight" for index in range(100)], 16


def _life(address: str, number: int) -> None:
    with RawRank(address, f"life-{number}", 0, 1) as rank:
        declare_all([rank], NAMES, NUMEL)
        rank.fill(1.0)
        assert "norm" in rank.finished(rank.ask_finish(0))
        if number % 2:
            os.kill(os.getpid(), signal.SIGKILL)


def live(address: str, number: int) -> None:
    """In a process of its own, which ends by itself or by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            _life(address, number)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (-signal.SIGKILL if number % 2 else 0), status


def lives(daemon: Daemon, numbers: range) -> None:
    for number in numbers:
        live(daemon.socket, number)
    end = time.monotonic() + DEADLINE_S
    while not re.search(r"^gradsync_rpc_sessions 0", get(daemon.unix(), "/metrics")[1], re.MULTILINE):
        assert time.monotonic() < end, "the daemon keeps ranks that are gone"
        time.sleep(0.01)


def held(daemon: Daemon) -> dict[str, float]:
    text = Path(f"/proc/{daemon.process.pid}/status").read_text()
    parts = {"resident": "VmRSS", "anonymous": "RssAnon", "file": "RssFile", "shared": "RssShmem"}
    return {
        name: round(int(re.findall(rf"^{field}:\s+(\d+)", text, re.MULTILINE)[0]) / 1024, 2)
        for name, field in parts.items()
    }


if __name__ == "__main__":
    with Daemon() as daemon:
        done = 0
        for target in [int(text) for text in sys.argv[1:]] or [0, 100, 1000, 10_000]:
            lives(daemon, range(done, target))
            done = target
            print(json.dumps({"lives": done, **held(daemon)}), flush=True)
