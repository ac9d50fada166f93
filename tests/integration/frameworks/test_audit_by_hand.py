"""`gradsync audit` on tensor parallelism of plain tensors: `--sharded`, and `Sharded` in the line; by_hand.py has the
scripts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import by_hand
import pytest
import torch
from audits import audit, ranks_of, whole

SCRIPT = by_hand.__file__
CUT = ("--mesh", "tp=2", "--sharded", "w1:0:tp", "--sharded", "w2:1:tp")


def norm_of_one_device(step: int) -> float:
    torch.manual_seed(0)
    parts = [torch.randn(6, 4), torch.randn(4, 6), torch.randn(4)]
    return (step + 1) * math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def groups(found: dict[str, Any]) -> dict[str, str]:
    return {line["name"]: line["verdict"] for line in found["lines"][1:]}


def test_tensors_that_are_cut_by_hand_agree(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "norm_over_tp", SCRIPT), options=CUT, json_file=tmp_path / "verdict.json")
    assert code == 0, said
    line = whole(found)
    assert line["verdict"] == "agrees"
    assert line["ours"] == pytest.approx(norm_of_one_device(line["step"]), rel=2e-7)
    assert groups(found) == {"over tp": "agrees", "copied to all ranks": "agrees"}


@pytest.mark.training
def test_a_norm_that_forgets_tp_is_named(tmp_path: Path) -> None:
    code, said, found = audit(
        *ranks_of(2, "norm_that_forgets_tp", SCRIPT), options=CUT, json_file=tmp_path / "verdict.json"
    )
    assert code == 1, said
    assert [(cause["kind"], cause["axis"]) for cause in whole(found)["causes"]] == [("axis_missing", "tp")]
    assert groups(found) == {"over tp": "differs", "copied to all ranks": "agrees"}


@pytest.mark.training
def test_the_line_says_the_same(tmp_path: Path) -> None:
    command = ranks_of(2, "norm_that_forgets_tp_with_the_line", SCRIPT)
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert ("axis_missing", "tp") in [(cause["kind"], cause["axis"]) for cause in whole(found)["causes"]]
    exact = norm_of_one_device(whole(found)["step"])
    assert whole(found)["ours"] == pytest.approx(exact, rel=2e-7)


@pytest.mark.training
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mesh", "tp=2", "--sharded", "w1:2:tp"), "'w1': it is of shape (3, 4), without a dim 2"),
        (("--mesh", "tp=2", "--sharded", "w1:0:dp"), "no mesh has axis 'dp'; meshes are mesh {'tp': 2}"),
        (("--mesh", "tp=2", "--sharded", "w9:0:tp"), "Sharded('w9', dim=0, axis='tp'): no parameter of this rank has"),
        (("--mesh", "tp=2", "--sharded", "w1:0:tp"), "'w2'"),  # forgotten
        (("--sharded", "w1:tp"), "PATTERN:DIM:AXIS"),
    ],
)
def test_cuts_that_cannot_be_are_refused_by_name(options: tuple[str, ...], message: str) -> None:
    code, said, _ = audit(*ranks_of(2, "norm_over_tp", SCRIPT), options=options)
    assert code == 2, said
    assert message in said
