"""`gradsync bench`: what it measures, and what it says of it. The figures themselves depend on the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from real_daemon import binary

from gradsync._bench import _cli
from gradsync._bench._figures import Figure, in_turns
from gradsync._cli import main


def figure(taken_s: float) -> Figure:
    return Figure("a step", "a loop", taken_s, 1.0, 2.0, "look there")


def test_contenders_take_turns_and_what_disturbs_few_rounds_is_left_out() -> None:
    order: list[str] = []

    def contender(name: str, times: list[float]) -> Callable[[], list[float]]:
        def one_round() -> list[float]:
            order.append(name)
            return [times.pop()]

        return one_round

    quick = contender("quick", [1.0, 1.1, 30.0, 1.2])
    slow = contender("slow", [2.0, 2.1, 2.2, 50.0])
    assert in_turns([quick, slow], 4) == [1.1, 2.1]
    assert order == ["slow", "quick", "quick", "slow"] * 2


@pytest.mark.parametrize(("taken_s", "well"), [(2.0, True), (2.1, False)])
def test_a_figure_above_its_bound_fails_with_advice(
    taken_s: float, well: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    monkeypatch.setattr("gradsync._bench._memory.measure_memory", lambda *_: figure(1.0))
    monkeypatch.setattr("gradsync._bench._latency.measure_latency", lambda *_: figure(taken_s))
    monkeypatch.setattr(_cli.os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    assert main(["bench"]) == (0 if well else 1)
    said = capsys.readouterr().out
    assert said.startswith("ok    a step\n      is 1.00 times a loop, at most 2\n")
    assert ("look there" in said) != well
    assert said.endswith(f"This node is {'as fast as' if well else 'slower than'} it should be.\n")


def test_it_measures_a_daemon_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GRADSYNCD", binary())
    code = main(["bench", "--megabytes", "1", "--rounds", "1", "--json"])
    memory, latency = json.loads(capsys.readouterr().out)
    assert code == (0 if memory["well"] and latency["well"] else 1)
    for one in (memory, latency):
        assert one["ratio"] == pytest.approx(one["taken_s"] / one["floor_s"])
        assert one["well"] == (one["ratio"] <= one["allowed"])
        assert one["floor_s"] > 0
    assert re.fullmatch(r"a step of 2 ranks with 1 MiB each \([0-9.]+ GB/s\)", memory["what"])
    assert re.fullmatch(r"an echo over a socket \([0-9]+ µs\)", latency["floor"])


def test_more_than_a_node_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--megabytes", "2048"])
    assert "2048 is not from 1 to 1024" in capsys.readouterr().err
