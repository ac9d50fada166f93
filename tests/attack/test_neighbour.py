"""A small step does not wait for what a neighbour has much of: neither for the pass of a large step, nor for messages.
The neighbour comes to its end too."""

from __future__ import annotations

import contextlib
import time

import pytest
from attacks import more_descriptors
from daemon import Daemon
from neighbour import Neighbour
from raw import RawRank, frame, request
from victim import Victim, goes_on_for, lasts

NUMEL, NEIGHBOUR_STEPS = 20_000_000, 10
CONNECTIONS, PIPELINED = 450, 20


@pytest.mark.training
def test_one_tensor_of_20_million_numbers() -> None:
    """With a general norm exponent, so that one pass is long beside what a busy machine takes from the victim."""
    with Daemon() as daemon, Victim(daemon.socket) as victim, Neighbour(daemon.socket, NUMEL, 3.5) as neighbour:
        before, begin = (victim.steps, neighbour.steps), time.monotonic()
        while neighbour.steps == before[1] or lasts(begin):
            neighbour.steps_on(NEIGHBOUR_STEPS)
        small, large = victim.steps - before[0], neighbour.steps - before[1]
        # A lane that finishes a pass before it takes the next command gives both the same number, or twice as many.
        assert small >= 5 * large, f"{small} steps of the victim in {large} of its neighbour"


@pytest.mark.long
def test_450_connections_of_one_process_that_have_messages_all_the_time() -> None:
    with Daemon() as daemon, Victim(daemon.socket) as victim, contextlib.ExitStack() as stack:
        more_descriptors(2 * CONNECTIONS + 200)
        jobs = [stack.enter_context(RawRank(daemon.socket, f"job-{number}", 0, 1)) for number in range(CONNECTIONS)]

        def burst(first: int) -> None:
            numbers = range(first, first + PIPELINED)
            messages = b"".join(frame(request(number, "job.pause", paused=True)) for number in numbers)
            for job in jobs:
                job.socket.sendall(messages)
            for job in jobs:
                read = 0
                while read < PIPELINED:
                    answers = job.socket.recv(1 << 16)
                    assert answers
                    read += answers.count(b'"result":{}')

        steps, answers = victim.steps, 0
        for number in goes_on_for(3):
            burst(1_000_000 + number * PIPELINED)
            answers += CONNECTIONS * PIPELINED
        print(victim.steps - steps, answers)
        # Where each connection has one message executed in turn, this is one step in about 600 answers.
        assert (victim.steps - steps) * 100 >= answers, f"{victim.steps - steps} steps beside {answers} answers"
