"""Asks and draws, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live

from ._history import History
from ._view import view

__all__ = ["watch"]

EVERY_S = 1.0


def watch(ask: Callable[[], dict[str, Any]]) -> None:
    """Draws the answers of `ask` on standard output, in place on a terminal and one below the other elsewhere.

    `rich` keeps to NO_COLOR, and to a terminal's size. What `ask` raises ends it.
    """
    console = Console()
    history = History()

    def drawn() -> Any:
        status = ask()
        history.add(status, time.monotonic())
        return view(status, history)

    try:
        if not console.is_terminal:
            while True:
                console.print(drawn())
                console.file.flush()
                time.sleep(EVERY_S)
        with Live(drawn(), console=console, auto_refresh=False, screen=True, vertical_overflow="ellipsis") as live:
            while True:
                time.sleep(EVERY_S)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return
