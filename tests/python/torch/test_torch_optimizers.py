"""A bare loop with optimizers beside torch's usual ones: weights have the bits of a plain loop on all data."""

from __future__ import annotations

import pytest
from live_world import DEADLINE_S, Live, run_live
from optimizer_rank import CASES, STEPS

# The first test waits for the ranks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(DEADLINE_S)]


@pytest.fixture(scope="module")
def trained(real_daemon: str, tmp_path_factory: pytest.TempPathFactory) -> Live:
    return run_live("optimizer_rank.py", 2, real_daemon, tmp_path_factory.mktemp("optimizers"))


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_bits_of_a_plain_loop(trained: Live, case: str) -> None:
    for found in trained[case]:
        assert found["same"] == [True] * STEPS
        assert found["moved"] == [True] * STEPS
