"""Ranks of a job that live in the test's process, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from daemon import DEADLINE_S


def on_all(ranks: Iterable[Any], body: Callable[[Any], Any], within_s: float = 2 * DEADLINE_S) -> list[Any]:
    """`body` of each on a thread; what they returned or raised."""
    ranks = list(ranks)
    results: list[Any] = [None] * len(ranks)

    def run(index: int) -> None:
        try:
            results[index] = body(ranks[index])
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within_s)
        assert not thread.is_alive(), f"a rank hangs; {results}"
    return results


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
