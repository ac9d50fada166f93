"""A small step does not wait for the pass of a neighbour's large one, and the neighbour comes to its end too."""

from __future__ import annotations

import time

from daemon import Daemon
from neighbour import Neighbour
from victim import Victim, lasts

NUMEL, NEIGHBOUR_STEPS = 20_000_000, 10


def test_one_tensor_of_20_million_numbers() -> None:
    """With a general norm exponent, so that one pass is long beside what a busy machine takes from the victim."""
    with Daemon() as daemon, Victim(daemon.socket) as victim, Neighbour(daemon.socket, NUMEL, 3.5) as neighbour:
        before, begin = (victim.steps, neighbour.steps), time.monotonic()
        while neighbour.steps == before[1] or lasts(begin):
            neighbour.steps_on(NEIGHBOUR_STEPS)
        small, large = victim.steps - before[0], neighbour.steps - before[1]
        # A lane that finishes a pass before it takes the next command gives both the same number, or twice as many.
        assert small >= 5 * large, f"{small} steps of the victim in {large} of its neighbour"
