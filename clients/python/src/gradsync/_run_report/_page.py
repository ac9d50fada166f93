"""The numbers of a report in words, and the page that has them beside the picture."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Sequence

from ._replay import Replayed
from ._run import Point, Run

__all__ = ["page", "rows_of"]

_NAMED = 3  # findings of a kind that are written out
_STYLE = "body{font:14px sans-serif;margin:2em;max-width:1100px}svg{width:100%;height:auto}td{padding:.2em 1em .2em 0}"


def rows_of(run: Run, replayed: Sequence[Replayed] | str) -> list[tuple[str, str]]:
    """What the report says, row by row: a name and a text."""
    points = run.points
    rows = [("run", run.name), ("logged", _logged(run)), ("norm", _spread([point.norm for point in points]))]
    thresholds = [point.threshold for point in points]
    rows.append(("threshold", _spread(thresholds) if any(map(math.isfinite, thresholds)) else "none"))
    rows.append(("clipped", _share(len(run.clipped), len(points))))
    rows += [(kind, _finding(found)) for kind, found in run.findings.items()]
    if isinstance(replayed, str):
        return [*rows, ("policies", replayed)]
    for one in replayed:
        rows.append((one.policy, f"would clip {_share(sum(one.clipped), len(points))}; at {_spread(one.thresholds)}"))
    if replayed and run.every > 1:
        rows.append(("note", f"policies saw every {run.every}th norm alone; log with every=1 for what they would do"))
    return rows


def page(run: Run, replayed: Sequence[Replayed] | str, svg: str) -> str:
    """A page that needs nothing beside it."""
    cells = "\n".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in rows_of(run, replayed)
    )
    title = html.escape(f"gradsync report: {run.name}")
    picture = svg[svg.index("<svg") :]  # without the declaration of XML
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n<style>{_STYLE}</style>\n'
        f"<h1>{title}</h1>\n{picture}\n<table>\n{cells}\n</table>\n</html>\n"
    )


def _logged(run: Run) -> str:
    first, last = run.points[0].step, run.points[-1].step
    again = f"; {run.again} were logged again after a restart" if run.again else ""
    return f"{len(run.points)} steps, {first} to {last}, every {run.every}{again}"


def _spread(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "no threshold"
    return (
        f"{min(finite):.4g} to {max(finite):.4g}, median {statistics.median(finite):.4g}, at the end {finite[-1]:.4g}"
    )


def _share(count: int, of: int) -> str:
    return f"{count} of {of} logged steps ({100 * count / of:.1f} %)"


def _finding(found: Sequence[Point]) -> str:
    said = [f"step {point.step}: {'; '.join(point.says)}" for point in found if point.says][:_NAMED]
    steps = f"step {found[0].step}" if len(found) == 1 else f"{len(found)} steps, {found[0].step} to {found[-1].step}"
    return steps + (f" ({' · '.join(said)})" if said else "")
