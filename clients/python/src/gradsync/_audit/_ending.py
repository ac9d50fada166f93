"""How an audited command ended: with which code, and which rank failed where, so that no verdict hides a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gradsync._injected._ending import first_failure, how_it_ended

from ._findings import RankFindings, read_ranks
from ._verdict import Verdict

__all__ = ["after_failure"]

_MEND = "mend this first, then audit again: one step of all ranks is enough"


def after_failure(verdict: Verdict, code: int, folder: Path, steps: int) -> Verdict:
    """The verdict of a command that ended with this code, which is not 0; `steps` were to be compared."""
    ended = f"the command {how_it_ended(code)}"
    failed = first_failure(folder)
    where = "; its output says where" if failed is None else f": {failed}"
    if verdict.reason is None:
        done = f" after {verdict.steps} of {steps} steps" if verdict.steps < steps else ""
        return replace(verdict, findings=(f"{ended}{done}{where}", *verdict.findings))
    ranks = read_ranks(folder)
    if not ranks:
        return replace(verdict, reason=f"{ended} before any rank called a clip function of torch{where}", advice=_MEND)
    return replace(verdict, reason=f"{ended}{where}; by then {_progress(ranks)}; {verdict.reason}", advice=_MEND)


def _progress(ranks: Mapping[int, RankFindings]) -> str:
    steps = {len(found.steps) for found in ranks.values()}
    least, most = min(steps), max(steps)
    many = f"{least}" if least == most else f"{least} to {most}"
    return f"{len(ranks)} of {max(found.world_size for found in ranks.values())} ranks had made {many} steps"
