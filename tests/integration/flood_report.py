"""What floods cost those who behave: the p99 of two ranks' steps undisturbed and under each kind of flood.

    python tests/integration/flood_report.py [--seconds 12] [--flooders 2] [--real-time] [kind ...]

Quiet and flooded times of half a second alternate on one daemon, so that what else the machine does is in both, and the
median over them is reported, so that what it does now and then is in neither. Flooders are processes of the lowest
priority; where processors are few they disturb by what they compute, too, so a kind that floods nobody and computes
(`spinning`) is measured beside the others. With `--real-time` the daemon and the ranks run before everything else and
the flooders as usual: what is left is what the daemon does for them, and the system. It takes root."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event

from daemon import DEADLINE_S, Daemon
from floods import KINDS
from walkers import PROCESSES, Walkers

PHASE_S = 0.5


def spinning(address: str) -> int:
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass
    return 0


KIND_OF = {kind.__name__: kind for kind in (spinning, *KINDS)}


def flood(kind: Callable[[str], int], address: str, nice: int, go: Event, stop: Event) -> None:
    os.nice(nice)
    while not stop.is_set():
        if go.wait(0.1):
            kind(address)


def run_first(pid: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(10))


def measure(kind: Callable[[str], int], flooders: int, seconds: float, real_time: bool) -> dict[str, float]:
    with Daemon() as daemon:
        go, stop = PROCESSES.Event(), PROCESSES.Event()
        arguments = (kind, daemon.socket, 0 if real_time else 19, go, stop)
        others = [PROCESSES.Process(target=flood, args=arguments, daemon=True) for _ in range(flooders)]
        for other in others:
            other.start()
        phases: list[float] = []
        with Walkers(daemon.socket) as walkers:
            if real_time:
                ranks = [child.pid for child in multiprocessing.active_children() if child not in others]
                for pid in (daemon.process.pid, *(rank for rank in ranks if rank)):
                    run_first(pid)
            while len(phases) * PHASE_S < seconds:
                phases.append(time.perf_counter())
                time.sleep(PHASE_S)
                (go.clear if go.is_set() else go.set)()
            took, wrong = walkers.stop()
        stop.set()
        for other in others:
            other.join(DEADLINE_S)
            assert other.exitcode == 0, f"a flooder of {kind.__name__} ended with {other.exitcode}"
    assert wrong == 0, f"{wrong} steps were wrong"
    steps: list[list[float]] = [[] for _ in phases]
    for begin, step_s in took:
        if begin >= phases[0]:
            steps[sum(begin >= phase for phase in phases[1:])].append(step_s * 1e6)
    found: dict[str, float] = {}
    for name, first in (("quiet", 0), ("flooded", 1)):
        cuts = [statistics.quantiles(of_phase, n=100) for of_phase in steps[first::2]]
        p50, p99 = (statistics.median(cut[percent - 1] for cut in cuts) for percent in (50, 99))
        count = sum(map(len, steps[first::2]))
        found |= {f"{name}_steps": count, f"{name}_p50_us": round(p50), f"{name}_p99_us": round(p99)}
    return {**found, "p99_ratio": round(found["flooded_p99_us"] / found["quiet_p99_us"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=", ".join(KIND_OF))
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--flooders", type=int, default=2)
    parser.add_argument("--real-time", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.kinds or KIND_OF:
        found = measure(KIND_OF[name], arguments.flooders, arguments.seconds, arguments.real_time)
        print(json.dumps({"kind": name, **found}), flush=True)


if __name__ == "__main__":
    main()
