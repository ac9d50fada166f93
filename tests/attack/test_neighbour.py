"""A small step does not wait for the pass of a neighbour's large one, and the neighbour comes to its end too."""

from __future__ import annotations

import pytest
from daemon import Daemon
from neighbour import Neighbour
from victim import Victim

NUMEL, NEIGHBOUR_STEPS = 20_000_000, 10


@pytest.mark.parametrize("norm_type", [2, 3.5])
def test_one_tensor_of_20_million_numbers(norm_type: float) -> None:
    with Daemon() as daemon, Victim(daemon.socket) as victim, Neighbour(daemon.socket, NUMEL, norm_type) as neighbour:
        before = victim.steps, neighbour.steps
        neighbour.steps_on(NEIGHBOUR_STEPS)
        small, large = victim.steps - before[0], neighbour.steps - before[1]
        # A lane that finishes a pass before it takes the next command gives both the same number, or twice as many.
        assert small >= 5 * large, f"{small} steps of the victim in {large} of its neighbour"
