"""What a step costs does not depend on how many jobs and ranks there are that do nothing."""

from __future__ import annotations

import contextlib

from attacks import WORLD, computed, cpu_seconds, idle_jobs, in_turn, job_of
from hostile import Daemon
from raw import RawClient
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


def test_a_status_says_of_each_of_them_how_many_ranks_are_absent() -> None:
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        idle_jobs(daemon, stack, JOBS)
        client = stack.enter_context(RawClient(daemon.socket, initialize=True))
        status = client.call("status.get")
        assert (len(status["jobs"]), status["jobs_left_out"]) == (JOBS, 0)
        for job in status["jobs"]:
            assert [rank["rank"] for rank in job["ranks"]] == [0]
            assert (job["absent"], job["absent_ranks"]) == (WORLD - 1, list(range(1, 21)))
            assert "4075 more not attached" in job["reason"]


def test_an_event_of_a_job_with_many_ranks() -> None:
    """Where the next deadline looks at all ranks for each of them, four times as many cost 16 times as much."""
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        few, many = job_of(daemon, stack, 100), job_of(daemon, stack, 400)

        def pause(rank: RawClient) -> None:
            for number in range(100):
                rank.call("job.pause", paused=number % 2 == 0)

        small, large = in_turn(
            [lambda: computed(daemon, lambda: pause(few[0])), lambda: computed(daemon, lambda: pause(many[0]))]
        )
        assert large < 8 * small, f"100 events cost {small * 1e3:.1f} ms with 100 ranks, {large * 1e3:.1f} ms with 400"
