"""`gradsync audit` on Megatron-Core's optimizer and its marks of tensor parallelism, as in megatron_scripts.py."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import megatron_scripts
import pytest
import torch
from audits import audit, ranks_of, whole

SCRIPT = megatron_scripts.__file__

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"),
]


def test_marked_cuts_agree_with_one_device_and_need_no_flag(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "marks_what_is_cut", SCRIPT), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    line = whole(found)
    torch.manual_seed(0)
    parts = [torch.randn(6, 4), torch.randn(4, 6), torch.randn(4)]
    first = math.sqrt(sum(float(part.double().square().sum()) for part in parts))
    # One step clips to a norm of 1 and goes 0.1 along the weights themselves: 0.1 less; its gradients are twice these.
    exact = [first, 2 * (first - 0.1)]
    assert line["ours"] == pytest.approx(exact[line["step"]], rel=1e-6)
    assert [(one["name"], one["tensors"], one["verdict"]) for one in found["lines"]] == [
        ("whole model", 3, "agrees"),
        ("copied to all ranks", 1, "agrees"),
        ("over tp", 2, "agrees"),
    ]
    assert not found["problems"]
    assert not found["findings"]


@pytest.mark.parametrize("name", ["ties_its_embedding_over_stages", "ties_its_embedding_and_clips_nothing"])
def test_an_embedding_that_two_stages_share_counts_once(tmp_path: Path, name: str) -> None:
    code, said, found = audit(*ranks_of(2, name, SCRIPT), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert [(one["name"], one["tensors"], one["verdict"]) for one in found["lines"]] == [
        ("whole model", 29, "agrees"),
        ("over pp", 29, "agrees"),
    ]
    assert not found["problems"]
    assert not found["findings"]


def test_a_shared_embedding_that_is_counted_twice_is_named(tmp_path: Path) -> None:
    command = ranks_of(2, "counts_its_embedding_twice", SCRIPT)
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 1, said
    (cause,) = whole(found)["causes"]
    assert cause["kind"] == "tied_twice"
    assert "'output_layer.weight'" in cause["text"]


def test_a_copy_of_an_unknown_weight_is_not_seen_and_that_is_said() -> None:
    code, said, _ = audit(*ranks_of(2, "marks_a_copy_of_an_unknown_weight", SCRIPT))
    assert code == 2, said
    assert "NotSeen: Megatron-Core " in said
    assert "not seen, because 'scale' is marked as shared, and nothing says which parameter" in said


def test_float32_copies_have_the_names_and_cuts_of_their_parameters(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "keeps_float32_copies", SCRIPT), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    torch.manual_seed(0)
    parts = [part.bfloat16().float() for part in (torch.randn(6, 4), torch.randn(4, 6), torch.randn(4))]
    first = math.sqrt(sum(float(part.square().sum()) for part in parts))
    stepped = [(part * (1 - 0.1 / first)).bfloat16().float() for part in parts]
    exact = [first, 2 * math.sqrt(sum(float(part.square().sum()) for part in stepped))]
    line = whole(found)
    assert line["ours"] == pytest.approx(exact[line["step"]], rel=1e-4)
    assert [(one["name"], one["tensors"], one["verdict"]) for one in found["lines"]] == [
        ("whole model", 3, "agrees"),
        ("copied to all ranks", 1, "agrees"),
        ("over tp", 2, "agrees"),
    ]
    assert not found["problems"]
    assert not found["findings"]  # as a note on parameters in no module would be


def test_a_norm_is_seen_where_nothing_is_clipped(tmp_path: Path) -> None:
    command = ranks_of(2, "clips_nothing_and_takes_the_norm", SCRIPT)
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert (whole(found)["verdict"], whole(found)["tensors"], found["steps"]) == ("agrees", 3, megatron_scripts.STEPS)
    assert not found["problems"]


def test_cuts_that_are_not_marked_are_refused_by_name() -> None:
    code, said, _ = audit(*ranks_of(2, "forgets_to_mark_the_cuts", SCRIPT))
    assert code == 2, said
    assert "'w1'" in said
    assert "tensors of one name differ between ranks that should hold copies" in said


def test_once_the_cuts_are_told_the_cause_is_named(tmp_path: Path) -> None:
    code, said, found = audit(
        *ranks_of(2, "forgets_to_mark_the_cuts", SCRIPT),
        options=("--sharded", "w1:0:tp", "--sharded", "w2:1:tp"),
        json_file=tmp_path / "verdict.json",
    )
    assert code == 1, said
    assert whole(found)["verdict"] == "differs"
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["first_only"]
