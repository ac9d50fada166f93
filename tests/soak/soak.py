"""`make soak`: two jobs over three daemons for an hour, under faults at random; build/soak/report.json says what came.

One job is on data path stats, the other's gradients travel. Every step that is done is checked: the norm, equal numbers
on all ranks, and each element of a sum. A round has a few dozen seconds of faults; behind it jobs end, and each daemon
has to be back at the descriptors, threads and memory that it had after its second round. Exits 1 at the first thing
that is wrong; the same seed draws the same faults, though not at the same moments.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "nodes"))

from daemon import DEADLINE_S
from node_faults import MEMORY_KB, Usage, wait_for
from node_jobs import Nodes, Route
from ranks_in_threads import on_all, whole
from soak_faults import Faults
from soak_job import KINDS, Heard, Kind, SoakJob

import gradsync

ROOT = Path(__file__).resolve().parents[2]
NODES = 3
PER_NODE = 2
ERA = 10  # rounds; daemons are killed in the first of them, so that what they keep can be compared over the others
WARM = 2  # rounds until a daemon's allocators and pools have what they need


class Kept:
    """What each daemon uses when no job is there, by its process."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.by_pid: dict[int, list[Usage]] = collections.defaultdict(list)

    def measure(self) -> None:
        for daemon in self._nodes.daemons:
            with gradsync.connect(daemon.socket, timeout=DEADLINE_S) as client:
                wait_for(lambda client=client: not client.status()["jobs"], "a job that was closed is still there")
            seen = self.by_pid[daemon.process.pid]
            seen.append(Usage.of(daemon.process.pid))
            if len(seen) > WARM:
                self._compare(daemon.process.pid, seen)

    def _compare(self, pid: int, seen: list[Usage]) -> None:
        before = seen[WARM - 1]

        def is_back() -> bool:
            now = Usage.of(pid)
            return now.descriptors <= before.descriptors and now.threads <= before.threads

        wait_for(is_back, f"daemon {pid} keeps {Usage.of(pid)}, and kept {before}")
        grown = seen[-1].memory_kb - before.memory_kb
        assert grown < MEMORY_KB * 2, f"daemon {pid} has grown by {grown} KiB: {seen}"


def one_round(
    nodes: Nodes, kinds: Sequence[Kind], number: int, seconds: float, randomly: random.Random, heard: Heard
) -> dict[str, int]:
    jobs = [
        SoakJob(kind, f"{kind.name}-{number}", Route.over(nodes, turned=bool(index)), PER_NODE, heard)
        for index, kind in enumerate(kinds)
    ]
    over = time.monotonic() + seconds

    def train(job: SoakJob) -> None:
        step = 0
        while step == 0 or time.monotonic() < over:
            job.step(step)
            step += 1
        job.step(step)

    try:
        with Faults(nodes, jobs, randomly, kill_daemons=number % ERA == 0) as faults:
            whole(on_all(jobs, train, within_s=seconds + 4 * DEADLINE_S))
    finally:
        for job in jobs:
            job.close()
    return faults.counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long (default: one hour)")
    parser.add_argument("--round-seconds", type=float, default=30.0, help="of faults in a round (default 30)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the faults (default: the time)")
    parser.add_argument("--only", choices=[kind.name for kind in KINDS], help="one of the jobs")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if options.only in (None, kind.name)]
    randomly, heard = random.Random(options.seed), Heard()
    faults: collections.Counter[str] = collections.Counter()
    began, rounds, wrong = time.monotonic(), 0, ""
    with tempfile.TemporaryDirectory(prefix="gradsync-soak-") as folder, Nodes(Path(folder), NODES) as nodes:
        kept = Kept(nodes)
        try:
            while rounds == 0 or time.monotonic() - began < options.seconds:
                faults.update(one_round(nodes, kinds, rounds, options.round_seconds, randomly, heard))
                kept.measure()
                rounds += 1
                print(
                    f"{time.monotonic() - began:6.0f} s: {rounds} rounds, {heard.steps} steps, "
                    f"{faults.total()} faults, {heard.replaced} ranks replaced, {heard.errors.total()} errors heard",
                    flush=True,
                )
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
    report = {
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "rounds": rounds,
        "steps": heard.steps,
        "faults": dict(faults),
        "ranks_replaced": heard.replaced,
        "errors_heard": dict(heard.errors),
        "kept": {pid: [dataclasses.asdict(usage) for usage in seen] for pid, seen in kept.by_pid.items()},
        "wrong": wrong,
    }
    out = ROOT / "build" / "soak" / "report.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{wrong or 'nothing was wrong, and nothing is left'}; seed {options.seed}, {out.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
