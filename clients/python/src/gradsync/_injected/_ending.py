"""How a command with hooks ended: in words, and which rank failed where."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

__all__ = ["first_failure", "how_it_ended"]


def how_it_ended(code: int) -> str:
    """In words; a negative code is that of a signal."""
    if code >= 0:
        return f"ended with code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def first_failure(folder: Path) -> str | None:
    """What the first rank that raised said; without ranks (a launcher raises too, after them) any process."""
    raised = [found for found in map(_read, folder.glob("raised-*.json")) if found is not None]
    of_ranks = [found for found in raised if found["rank"] is not None] or raised
    if not of_ranks:
        return None
    first = min(of_ranks, key=lambda found: float(found["time"]))
    who = "" if first["rank"] is None else f"rank {first['rank']}: "
    more = f" (and {len(of_ranks) - 1} more after it)" if len(of_ranks) > 1 else ""
    return f"{who}{first['error']}, at {first['place']}{more}"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):  # a process that was ended while it wrote
        return None
