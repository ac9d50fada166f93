"""The benchmarks over nodes: what they read from a log, and what they compute from their samples."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import results
from over_nodes import coordinator, step_empty


def traced(way: str, method: str, params: str = "{}") -> str:
    text = f'{{"jsonrpc":"2.0","method":"peer.{method}","params":{params}}}'
    return json.dumps({"level": "trace", "msg": f"{way} another daemon link=3 {text}"}) + "\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)


def test_messages_of_a_step_are_measured_as_the_daemon_traced_them() -> None:
    log = traced("to", "join") + traced("to", "ask", '{"word":"a"}') + traced("from", "done") + '{"level": "tr'
    assert step_empty.message_bytes(log) == {
        "peer.ask": len('{"jsonrpc":"2.0","method":"peer.ask","params":{"word":"a"}}'),
        "peer.done": len('{"jsonrpc":"2.0","method":"peer.done","params":{}}'),
    }


def test_a_message_that_the_log_cut_has_no_length() -> None:
    with pytest.raises(RuntimeError, match=r"peer\.ask"):
        step_empty.message_bytes(traced("to", "ask", "0" * step_empty.TRACED))


def written(two: list[float], one: list[float], echo: list[float]) -> dict[str, Any]:
    p50 = {"two_daemons": two, "one_daemon": one, "tcp_echo": echo, "two_bare": two, "one_bare": one}
    return step_empty.write("step_empty_nodes", len(two), {}, p50)


def test_what_two_daemons_take_more_than_one_is_compared_round_by_round_with_the_echo_of_the_run() -> None:
    assert results.missed([written([300, 900, 310], [100, 700, 110], [100, 100, 400])]) == []
    [missed] = results.missed([written([300, 900, 310], [90, 690, 100], [100, 100, 400])])
    assert missed == "step_empty_nodes: p50: (two daemons - one) / tcp_echo is 2.1, wanted <= 2"


def test_a_star_ends_where_its_nodes_take_the_coordinator_a_tenth_of_a_step() -> None:
    assert coordinator.each_other_node({1: 100, 2: 150, 8: 450}, 8) == 50
    assert coordinator.star_ends(50, 100) == 200
    assert coordinator.star_ends(50, 1000) == 2000


def test_sums_of_layers_cost_machine_and_codec_more_and_links_the_same() -> None:
    machine = {1: [{"nodes": 8, "step": 42.0}], 100: [{"nodes": 8, "step": 392.0}, {"nodes": 64, "step": 9e9}]}
    assert coordinator.of_layers(70.0, machine, 1) == 70
    assert coordinator.of_layers(70.0, machine, 100) == 70 - 6 + 56
