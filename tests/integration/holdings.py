"""What a daemon holds as the machine counts it: descriptors, threads, memory; and its own metrics."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from daemon import DEADLINE_S, Daemon, get


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def metric(daemon: Daemon, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(daemon.unix(), "/metrics")[1], re.MULTILINE)
    assert found, name
    return float(found[1])


def becomes(value: Callable[[], int], wanted: int) -> None:
    """Waits until the daemon has noticed what the test did."""
    end = time.monotonic() + DEADLINE_S
    while value() != wanted:
        assert time.monotonic() < end, f"{value()} is not {wanted}"
        time.sleep(0.01)
