"""The results of benchmarks: which bars there are, and that a missed one is seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import results


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)


def written(wanted: dict[str, Any], floor: list[float] | None = None) -> dict[str, Any]:
    return results.write("some", "ms", [2.0, 2.0, 9.0], {"peer": [8.0, 8.0, 1.0]}, floor, wanted)


def test_a_bar_of_the_floor_compares_with_the_samples_of_the_same_run() -> None:
    met = written({"wanted_floor_ratio": 1.25}, [1.6, 1.6, 5.0])
    missed = written({"wanted_floor_ratio": 1.25}, [1.5, 1.5, 5.0])
    assert results.missed([met]) == []
    assert results.missed([met, missed]) == ["some: ours / floor is 1.333, wanted <= 1.25"]


def test_a_bar_of_a_peer_compares_medians_of_the_same_run() -> None:
    assert results.missed([written({"wanted_ratio": 4.0})]) == []
    assert results.missed([written({"wanted_ratio": 4.5})]) == ["some: peer / ours is 4, wanted >= 4.5"]


def test_a_figure_without_a_bar_is_not_missed() -> None:
    assert results.missed([written({}, [0.1])]) == []


def test_a_bar_of_its_own_is_named_with_its_unit() -> None:
    bars = [results.Bar("slowest round", 0.7, 0.5, unit="s")]
    made = results.write("declare_10k", "s", [0.7], {}, None, {}, bars)
    assert results.missed([made]) == ["declare_10k: slowest round is 0.7 s, wanted <= 0.5"]
    assert "MISSED" in results.table([made])
