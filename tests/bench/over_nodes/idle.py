"""What a job over two daemons takes while its ranks do nothing: CPU of all processes, after steps that travelled."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from over_nodes.daemons import Nodes
from processes import Ranks
from steady import IDLE_S, WANTED_IDLE_PERCENT
from threads import threads_of

NODES = 2
PER_NODE = 2
LAST_LOOK_S = 2  # a wire looks once more at its connections when the last message has come


def cpu_by_name(pids: dict[str, list[int]]) -> dict[str, int]:
    """Nanoseconds so far, by kind of process and thread."""
    found: dict[str, int] = {}
    for kind, processes in pids.items():
        for pid in processes:
            for thread in threads_of(pid).values():
                name = f"{kind} {thread.name}"
                found[name] = found.get(name, 0) + thread.cpu_ns
    return found


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradsync-bench-")))
        nodes = stack.enter_context(Nodes(binaries / "gradsyncd", folder, NODES))
        ranks = Ranks("travelling_step", NODES * PER_NODE, {}, {}, nodes.environments(PER_NODE))
        stack.callback(ranks.close)
        for _ in range(5):
            ranks.step()
        pids = {"daemon": nodes.pids, "rank": ranks.pids}
        time.sleep(LAST_LOOK_S)
        before, begin = cpu_by_name(pids), time.monotonic()
        time.sleep(IDLE_S)
        after, seconds = cpu_by_name(pids), time.monotonic() - begin
    percent_by_thread = {thread: (cpu - before.get(thread, 0)) / 1e7 / seconds for thread, cpu in after.items()}
    percent = round(sum(percent_by_thread.values()), 5)
    config = {
        "daemons": NODES,
        "world_size": NODES * PER_NODE,
        "seconds": round(seconds, 2),
        "percent_by_thread": percent_by_thread,
    }
    bars = [results.Bar("of one CPU, all processes", percent, WANTED_IDLE_PERCENT, unit="%")]
    return results.write(name, "% of one CPU", [percent], {}, None, config, bars)
