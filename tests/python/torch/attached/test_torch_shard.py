"""`attach(shard=…)` in real processes: what the optimizer of this rank's rows leaves, on four ranks.

Beside attach without shards, to the bit, and beside one process on all data.
"""

from __future__ import annotations

import pytest
from live_world import DEADLINE_S, Live, run_live
from shard_rank import STEPS

# The first test waits for the ranks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(DEADLINE_S)]

TRAINED = ["zero2", "zero2_by_hand", "hsdp"]
RARE = ["rare.weight", "rare.bias"]


@pytest.fixture(scope="module")
def shards(real_daemon: str, tmp_path_factory: pytest.TempPathFactory) -> Live:
    return run_live("shard_rank.py", 4, real_daemon, tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("case", TRAINED)
def test_weights_gradients_and_norms_have_the_bits_of_whole_ones(shards: Live, case: str) -> None:
    for found in shards[case]:
        for what in ("same_weights", "same_gradients", "same_norm"):
            assert found[what] == [True] * STEPS, what
        assert found["divergence"] == 0


@pytest.mark.parametrize("case", TRAINED)
def test_weights_equal_those_of_one_process(shards: Live, case: str) -> None:
    for found in shards[case]:
        assert max(found["to_reference"]) <= 1e-6
        assert found["absent"] == ["unused", *([] if case == "zero2_by_hand" else RARE)]


@pytest.mark.parametrize(("case", "parts"), [("zero2", 4), ("zero2_by_hand", 4), ("hsdp", 2)])
def test_the_optimizer_has_its_state_for_its_rows_alone(shards: Live, case: str, parts: int) -> None:
    every = shards[case]
    whole = every[0]["state_bytes"][1]
    assert sum(found["elements"] for found in every) * parts // 4 == every[0]["elements_in_all"]
    for found in every:
        own, beside = found["state_bytes"]
        assert beside == whole
        assert 0 < own < 1.2 * whole / parts  # the first ranks have the larger parts


def test_refusals(shards: Live) -> None:
    for found in shards["refusals"]:
        assert found["whole_optimizer"].startswith("UsageError: AdamW holds the whole of 'unused'")
        assert "make it of gs.parameters()" in found["whole_optimizer"]
        assert found["moved"].startswith("ParameterChanged: 'scale': its memory was exchanged")
        assert found["exchanged"].startswith("ParameterChanged: ")
        assert "its memory was exchanged" in found["exchanged"]
        assert found["transposed"].startswith("ModuleRefused: 'weight': its rows are no parts of its memory")
        assert "which are not reduced yet" in found["early"]
        assert "which has 'dp'" in found["no_axis"]
        assert "use fully_shard for this module" in found["dtensors"]
