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
