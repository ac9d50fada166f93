"""Mode `sync` beside torch in real processes: DDP, HSDP, TP with and without SP, FSDP2 × TP, on 8 ranks.

The gradients of three steps against torch's own data parallelism where it has one for the model, and against the whole
model on all data in one process.
"""

from __future__ import annotations

import pytest
from live_world import DEADLINE_S, Live, run_live
from synced_rank import TRAINED

STAGES = {
    "ddp": ["mean over dp"],
    "hsdp": ["mean over dp_replicate"],
    "tp": ["mean over dp", "sum over tp"],
    "fsdp2": ["mean over dp_replicate"],
}
ELEMENTS, RARE, UNUSED = 1595, 156, 3


# The first test waits for the ranks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(DEADLINE_S)]


@pytest.fixture(scope="session")
def synced(real_daemon: str, tmp_path_factory: pytest.TempPathFactory) -> Live:
    return run_live("synced_rank.py", 8, real_daemon, tmp_path_factory.mktemp("synced"))


@pytest.mark.parametrize("case", TRAINED)
def test_gradients_equal_those_of_one_process(synced: Live, case: str) -> None:
    for result in synced[case]:
        assert len(result["to_reference"]) == 3
        assert max(result["to_reference"]) <= 1e-6
        assert result["weights"] <= 1e-6


@pytest.mark.parametrize("case", [case for case in TRAINED if not case.startswith("tp")])
def test_gradients_equal_torchs_own_data_parallelism(synced: Live, case: str) -> None:
    for result in synced[case]:
        assert len(result["to_torch"]) == 3
        assert max(result["to_torch"]) <= 1e-6


@pytest.mark.parametrize("case", TRAINED)
def test_every_step_has_the_norm_of_what_its_optimizer_gets(synced: Live, case: str) -> None:
    rare = 0 if "rare" in case or case == "ddp_2" else RARE
    for result in synced[case]:
        assert result["placed"]
        assert [ours for ours, _ in result["norms"]] == pytest.approx([exact for _, exact in result["norms"]], rel=1e-7)
        assert result["elements"] == [ELEMENTS - UNUSED - rare, ELEMENTS]
        assert result["absent"] == ["unused", *(["rare.weight", "rare.bias"] if rare else [])]
        assert result["divergence"] == 0
        assert result["norms"] == synced[case][0]["norms"]  # to the bit


@pytest.mark.parametrize("case", TRAINED)
def test_the_sidecar_reduces_where_the_framework_does_not(synced: Live, case: str) -> None:
    for result in synced[case]:
        assert result["stages"] == STAGES[case.split("_")[0]]
        assert result["early"] == 0 or not case.startswith(
            ("hsdp", "fsdp2")
        )  # DTensors are tried for three steps first


def test_gradients_are_taken_as_they_are_placed(synced: Live) -> None:
    once = [2.5 * i for i in range(7)]  # the data differ: 1…4 times as much
    for found in synced["placed_gradients"]:
        for kind in ("shard", "replicate", "partial"):
            assert found[kind] == once, kind
        assert found["all"] == [3 * value for value in once]
        for kind in ("shard", "replicate", "partial", "all"):
            assert found[f"{kind} rows"] == [[2.5] * 3] * 7


def test_a_rank_whose_slice_is_empty_adds_nothing_of_the_step_before(synced: Live) -> None:
    assert all(found["found"] == [[float(i) for i in range(9)]] * 3 for found in synced["empty_slice"])


def test_a_dim_smaller_than_its_axis(synced: Live) -> None:
    for found in synced["value_head"]:
        assert max(found.values()) <= 1e-6


def test_parameters_that_are_exchanged_under_a_framework_are_followed(synced: Live) -> None:
    for found in synced["exchanged"]:
        for name in ("fsdp", "tp", "moved"):
            assert found[name] <= 1e-6, name
            assert found[f"{name} early"] in ("ParameterChanged", "UsageError"), name


def test_experts_on_a_mesh_of_their_own(synced: Live) -> None:
    for found in synced["experts"]:
        assert found["dense"] == [[4.5] * 3] * 3
        assert found["experts"] == [[4.5] * 3] * 2


def test_adapters_of_a_frozen_base(synced: Live) -> None:
    for found in synced["lora"]:
        assert found["to_reference"] <= 1e-6
        assert found["stages"] == ["mean over dp"]
    assert all(found["to_reference"] <= 1e-6 for found in synced["adapters_beside_shards"])


def test_a_backward_begun_again(synced: Live) -> None:
    assert all(found["to_reference"] <= 1e-6 for found in synced["begun_again"])


def test_refusals(synced: Live) -> None:
    for found in synced["refusals"]:
        assert "reduces it over every axis" in found["both axes"]
        assert "mode clip" in found["both axes"]
        assert "load equal weights" in found["broadcast"]
        assert "no parameter of this module is a DTensor along it" in found["tp nowhere"]
        assert "does not lie along the axes" in found["other mesh"]
        assert "give two meshes" in found["experts on the first mesh"]
        assert found["diverged"].startswith("WeightsDiverged")
        assert "head.weight" in found["diverged"]
        assert "rank 5" in found["diverged"]
        assert "AdamW.step() would use a gradient of 'blocks.0.inner.norm.weight'" in found["partial"]
        assert found["partial synced"] == str([2.0] * 12)
