"""Every order of events within some budgets of faults keeps the promises, and each planted mistake breaks one."""

from __future__ import annotations

import pytest
from job_model import Budget, Fault, explore

BUDGETS = [
    Budget(kills=2),
    Budget(kills=1, cuts=1),
    Budget(kills=1, leaves=1),
    Budget(kills=1, aborts=1),
    Budget(kills=1, losses=1),
    Budget(leaves=1, echoes=1),
    Budget(aborts=1, echoes=1),
    Budget(cuts=1, aborts=1, repeats=1),
    Budget(aborts=1, kills=1, travels=True),
    Budget(aborts=1, echoes=1, travels=True),
    Budget(cuts=1, aborts=1, repeats=1, travels=True),
    Budget(nodes=3, kills=1),
    Budget(nodes=3, losses=1),
]
VERDICTS = "for the same attempt"
WITHOUT_ALL = "without the contribution of every node"
PLANTED = {
    Fault.NO_EPOCH_FENCE: (Budget(leaves=1, echoes=1), "is not connected in it"),
    Fault.NO_ATTEMPT_FENCE: (Budget(aborts=1, echoes=1), WITHOUT_ALL),
    Fault.NO_INCARNATION_FENCE: (Budget(kills=1), "waits for ever"),
    Fault.BEGIN_EARLY: (Budget(), "is not connected in it"),
    Fault.COMMIT_WITHOUT_ONE_VOTE: (Budget(kills=1), VERDICTS),
    Fault.ANSWER_BEFORE_DONE: (Budget(kills=1), VERDICTS),
    Fault.VOTE_BEFORE_VOTED: (Budget(kills=1), VERDICTS),
    Fault.DOUBT_IS_FAILURE: (Budget(kills=1), VERDICTS),
    Fault.STATE_WITH_DONE: (Budget(kills=1), "remembered is lost"),
    Fault.SUPERSEDED_JOIN: (Budget(kills=1), "was superseded"),
    Fault.DUPLICATE_ASK: (Budget(repeats=1), WITHOUT_ALL),
    Fault.DOUBT_WAITS_FOR_RANK: (Budget(leaves=1), "waits for a ruling"),
    Fault.CROSSED_JOIN: (Budget(leaves=1), "for ever"),
    Fault.LOCAL_RETRY: (Budget(kills=1), VERDICTS),
    Fault.ABORT_IN_EPOCH: (Budget(aborts=1, travels=True), "half of an attempt on the way"),
}


def words_of(budget: Budget) -> str:
    return ",".join(f"{name}={value}" for name, value in vars(budget).items() if value)


@pytest.mark.parametrize("budget", BUDGETS, ids=words_of)
def test_no_order_of_events_breaks_a_promise(budget: Budget) -> None:
    explored = explore(budget)
    assert explored.breach is None, "\n".join((explored.breach, *explored.trace))
    assert explored.states > 500
    # A daemon that is killed leaves no doubt behind: for that the coordinator's node has to go with all its ranks.
    assert bool(explored.doubts) == bool(budget.losses)


def test_a_job_without_faults_takes_all_its_steps() -> None:
    for nodes in (2, 3):
        assert explore(Budget(nodes=nodes, steps=2)).breach is None


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_planted_mistake_is_found(fault: Fault) -> None:
    budget, breach = PLANTED[fault]
    found = explore(budget, fault)
    assert breach in (found.breach or "no breach"), "\n".join(found.trace)
    assert explore(budget).breach is None
