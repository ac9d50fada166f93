"""What a step costs does not depend on how many jobs and ranks there are that do nothing."""

from __future__ import annotations

import contextlib

from attacks import cpu_seconds, idle_jobs, in_turn
from hostile import Daemon
from victim import Victim

JOBS, STEPS = 100, 100


def test_a_hundred_jobs_of_4096_ranks_that_have_one_each() -> None:
    with Daemon() as daemon, Victim(daemon.socket) as victim:

        def per_step() -> float:
            steps, cpu = victim.steps, cpu_seconds(daemon.process.pid)
            victim.steps_on(STEPS)
            return (cpu_seconds(daemon.process.pid) - cpu) / (victim.steps - steps)

        def beside_idle_jobs() -> float:
            with contextlib.ExitStack() as stack:
                idle_jobs(daemon, stack, JOBS)
                return per_step()

        alone, beside = in_turn([per_step, beside_idle_jobs], rounds=3)
        # Looking at all ranks of all jobs made it a hundred times as much.
        assert beside < 3 * alone, f"a step costs {alone * 1e6:.0f} us alone, {beside * 1e6:.0f} us beside {JOBS} jobs"
