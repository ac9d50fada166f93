"""Calls that a test makes while it does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Starts the call; the returned function waits for its result or raises its error."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = call()
        except Exception as error:
            outcome["error"] = error

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(50)
        assert not thread.is_alive()
        if "error" in outcome:
            raise outcome["error"]
        return outcome["result"]

    return result
