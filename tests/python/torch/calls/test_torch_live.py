"""gradsync and torch on the same gradients in real processes: FSDP2, HSDP, TP with SP, FSDP2 × TP, PP × EP.

The reference is the norm of the whole gradients in float64. Where torch differs from it, torch is wrong.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy
import pytest
from live_world import DEADLINE_S, Live, run_live

sys.path.append(str(Path(__file__).parents[3]))

from reference.auto_clip import AutoClip, thresholds

COMPARED = ["fsdp2", "hsdp", "fsdp2_tp", "fsdp2_tp_sp", "tp_sp"]


pytestmark = pytest.mark.timeout(DEADLINE_S)  # the first test waits for the ranks


@pytest.fixture(scope="session")
def live(real_daemon: str, tmp_path_factory: pytest.TempPathFactory) -> Live:
    return run_live("live_rank.py", 4, real_daemon, tmp_path_factory.mktemp("live"))


def within_one_ulp(found: float, exact: float) -> bool:
    return abs(numpy.float32(found) - numpy.float32(exact)) <= numpy.spacing(numpy.float32(exact))


@pytest.mark.parametrize("case", COMPARED)
def test_the_norm_is_exact_and_equal_on_every_rank(live: Live, case: str) -> None:
    results = live[case]
    assert [one["p"] for one in results[0]["cases"]] == [1.0, 2.0, 3.0, "inf"]
    for number, first in enumerate(results[0]["cases"]):
        assert {result["cases"][number]["ours"] for result in results} == {first["ours"]}
        assert within_one_ulp(first["ours"], first["exact"]), first


@pytest.mark.parametrize("case", COMPARED)
def test_everything_held_is_multiplied_by_one_coefficient(live: Live, case: str) -> None:
    assert all(one["multiplied"] for result in live[case] for one in result["cases"])


@pytest.mark.parametrize("case", COMPARED)
def test_torch_agrees_where_it_can(live: Live, case: str) -> None:
    for result in live[case]:
        for one in result["cases"]:
            if case == "fsdp2_tp":  # the norms are on one mesh, the linear layers on two: torch cannot add them up
                assert "same mesh" in one["theirs"]
                continue
            assert one["ours"] == pytest.approx(one["theirs"], rel=2e-6)
            assert one["largest_difference"] < 1e-6


@pytest.mark.parametrize("case", COMPARED)
def test_every_element_is_counted_once_and_no_sum_crosses_replicas(live: Live, case: str) -> None:
    axes = {
        "fsdp2": [["dp_shard"]],
        "hsdp": [["dp_shard"]],
        "fsdp2_tp": [["dp_shard"], ["dp_shard", "tp"]],
        "fsdp2_tp_sp": [["dp_shard"], ["dp_shard", "tp"]],
        "tp_sp": [["tp"]],
    }[case]
    for result in live[case]:
        for one in result["cases"]:
            assert one["elements"] == result["elements"]
            assert [found for found, _ in one["collectives"]] == axes
            assert (one["divergence"], one["missing"]) == (0, 0)


def test_a_gradient_that_sequence_parallel_left_unreduced_is_refused_by_name(live: Live) -> None:
    assert {one["refused"] for result in live["tp_sp"] for one in result["cases"]} == {"0.norm.weight"}
    assert {one["refused"] for result in live["fsdp2_tp_sp"] for one in result["cases"]} == {""}


def test_the_norm_is_a_dtensor_where_torchs_is(live: Live) -> None:
    for case in COMPARED:
        assert {one["is_dtensor"] for one in live[case][0]["cases"]} == {case != "fsdp2_tp"}


def test_pipeline_and_experts_by_hand(live: Live) -> None:
    results = live["pipeline_and_experts"]
    for result in results:
        assert within_one_ulp(result["ours"], result["exact"])
        assert result["ours"] == results[0]["ours"]
        assert result["multiplied"]
        assert result["missing"] == [["experts", [3]]]
        assert result["refused"] == "WeightsDiverged"


def test_tensors_that_are_cut_by_hand_have_the_norm_of_one_device(live: Live) -> None:
    for result in live["cut_by_hand"]:
        assert within_one_ulp(result["ours"], result["exact"])
        assert result["multiplied"]
        for case, kind, tensor in (
            ("uneven", "PlanMismatch", "w1"),
            ("forgotten", "WeightsDiverged", "w2"),
            ("wrong_axis", "WeightsDiverged", "w1"),
            ("unmatched", "UsageError", "w3"),
        ):
            assert result["refused"][case][0] == kind
            assert tensor in result["refused"][case][1]


def test_bfloat16_gradients_have_a_float32_norm(live: Live) -> None:
    for result in live["bfloat16"]:
        assert within_one_ulp(result["ours"], result["exact"])
        assert not within_one_ulp(result["theirs"], result["exact"])


def test_squares_that_overflow_float32_are_clipped_not_zeroed(live: Live) -> None:
    for result in live["overflow"]:
        assert result["ours"] == pytest.approx(result["exact"], rel=1e-6)
        assert result["after"] == pytest.approx(1.0, rel=1e-5)


def test_the_threshold_of_drop_ins_follows_the_norms_before(live: Live) -> None:
    results = live["policies"]
    norms = [float(one["norm"]) for one in results[0]["steps"]]
    assert [math.isnan(norm) for norm in norms] == [False, False, False, True, False, False]
    wanted = thresholds(AutoClip(1e6, 50, 4, 2), norms)
    for result in results:
        assert [float(one["norm"]) for one in result["steps"]] == pytest.approx(norms, abs=0, nan_ok=True)
        assert [one["threshold"] for one in result["steps"]] == wanted
        assert {one["watched"] for one in result["steps"]} == {1}
        assert all(one["multiplied"] for number, one in enumerate(result["steps"]) if number != 3)


def test_weights_are_compared_where_they_are_copies(live: Live) -> None:
    for result in live["weights"]:
        assert result == {
            "hsdp 0.up.weight": ["equal", "equal", [["0.up.weight"], [1, 3]]],
            "fsdp2_tp 1.norm.weight": ["equal", "equal", [["1.norm.weight"], [2, 3]]],
            "fsdp2_tp 1.up.weight": ["equal"] * 3,  # no rank has a copy
        }


def test_copies_along_tp_are_compared_before_one_of_them_is_summed(live: Live) -> None:
    for result in live["copies"]:
        assert result == {
            "report": [[], [["0.down.bias", [2, 3], "gradients"]], []],
            "raise": [[], [["0.down.bias"], True], []],
        }


def test_nan_on_one_rank_zeroes_or_raises_on_all(live: Live) -> None:
    for result in live["policies"]:
        assert [one["action"] for one in result["steps"]] == ["step", "step", "step", "zero", "step", "step"]
        assert [one["zeros"] for one in result["steps"]] == [False, False, False, True, False, False]
        assert (result["raised"], result["kept"], result["next_is_finite"]) == ("all", True, True)
