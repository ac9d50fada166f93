"""A bare loop with optimizers beside torch's usual ones: weights have the bits of a plain loop on all data."""

from __future__ import annotations

import importlib.util

import pytest
from live_world import DEADLINE_S, Live, run_live
from optimizer_rank import CASES, LOOPS, STEPS

# The first test waits for the ranks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(DEADLINE_S)]
HAS_8BIT = importlib.util.find_spec("bitsandbytes") is not None
EIGHT_BITS = pytest.mark.skipif(not HAS_8BIT, reason="bitsandbytes is not installed")


@pytest.fixture(scope="module")
def trained(real_daemon: str, tmp_path_factory: pytest.TempPathFactory) -> Live:
    return run_live("optimizer_rank.py", 2, real_daemon, tmp_path_factory.mktemp("optimizers"))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=EIGHT_BITS if case.startswith("adamw_8bit") else ()) for case in CASES]
)
def test_weights_have_the_bits_of_a_plain_loop(trained: Live, case: str) -> None:
    for found in trained[case]:
        assert found["same"] == [True] * STEPS
        assert found["moved"] == [True] * STEPS


@EIGHT_BITS
@pytest.mark.parametrize("loop", LOOPS)
def test_an_optimizer_of_8_bits_has_states_of_8_bits(trained: Live, loop: str) -> None:
    assert all("torch.uint8" in found["states"] for found in trained[f"adamw_8bit_{loop}"])
