"""How an audited command ended: with which code, and which rank failed where, so that no verdict hides a crash."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ._findings import RankFindings, read_ranks
from ._verdict import Verdict

__all__ = ["after_failure"]

_MEND = "mend this first, then audit again: one step of all ranks is enough"


def after_failure(verdict: Verdict, code: int, folder: Path, steps: int) -> Verdict:
    """The verdict of a command that ended with this code, which is not 0; `steps` were to be compared."""
    ended = f"the command {_ended(code)}"
    failed = _first_failure(folder)
    where = "; its output says where" if failed is None else f": {failed}"
    if verdict.reason is None:
        done = f" after {verdict.steps} of {steps} steps" if verdict.steps < steps else ""
        return replace(verdict, findings=(f"{ended}{done}{where}", *verdict.findings))
    ranks = read_ranks(folder)
    if not ranks:
        return replace(verdict, reason=f"{ended} before any rank called a clip function of torch{where}", advice=_MEND)
    return replace(verdict, reason=f"{ended}{where}; by then {_progress(ranks)}; {verdict.reason}", advice=_MEND)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _progress(ranks: Mapping[int, RankFindings]) -> str:
    steps = {len(found.steps) for found in ranks.values()}
    least, most = min(steps), max(steps)
    many = f"{least}" if least == most else f"{least} to {most}"
    return f"{len(ranks)} of {max(found.world_size for found in ranks.values())} ranks had made {many} steps"


def _first_failure(folder: Path) -> str | None:
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
