"""A batch that is short to send is not long to answer."""

from __future__ import annotations

from typing import Any

from attacks import batch, computed, in_turn, whole_batch
from hostile import Daemon
from raw import RawClient, RawRank, declare_all

ITEMS, STEPS = 64, 100


def test_a_batch_of_64_stats_get_ends_where_its_answer_is_full() -> None:
    """The reports behind the one that fills the answer are not made, so they cost next to nothing."""
    with Daemon() as daemon, RawRank(daemon.socket, "job", 0, 1) as rank:
        declare_all([rank], [f"tensor-{index}" for index in range(64)], 1)
        for step in range(STEPS):
            rank.finished(rank.ask_finish(step))

        def cost(items: int) -> float:
            with RawClient(daemon.socket, initialize=True) as client:
                message = batch("stats.get", items, job="job", last=STEPS)
                assert len(message) < 7000
                answers: list[dict[str, Any]] = []
                cost_s = computed(daemon, lambda: answers.extend(whole_batch(client, message)))
                assert len(answers) == items
                assert "result" in answers[0]
                assert answers[-1]["error"]["data"]["kind"] == "limit_exceeded"
                return cost_s

        few, many = in_turn([lambda: cost(ITEMS // 4), lambda: cost(ITEMS)])
        assert many < 3 * few, f"{few * 1e3:.1f} ms of {ITEMS // 4} items, {many * 1e3:.1f} ms of {ITEMS}"


def test_64_times_rpc_discover_before_initialize() -> None:
    with Daemon() as daemon:

        def cost(method: str) -> float:
            with RawClient(daemon.socket) as client:
                message = batch(method, ITEMS)
                return computed(daemon, lambda: whole_batch(client, message))

        known, document = in_turn([lambda: cost("status.get"), lambda: cost("rpc.discover")])
        # It is a thousand times as long; made anew for each, it cost thousands of times as much.
        assert document < 300 * known, f"{known * 1e3:.2f} ms of status.get, {document * 1e3:.2f} ms of rpc.discover"
