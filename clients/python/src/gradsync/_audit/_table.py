"""A verdict as a person reads it, and as JSON."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from ._verdict import Line, Verdict

__all__ = ["as_json", "as_text"]

_HEADINGS = ("", "tensors", "exact norm", "their norm", "difference", "verdict")
_WIDTH = 118
_LARGE = 10.0  # a relative difference from which on a factor reads better than a percentage
_HARMLESS = 1e-6  # relative; a coefficient in float32 is no more precise


def as_text(verdict: Verdict) -> str:
    """The text of the table, without a line feed at its end."""
    if verdict.reason is not None:
        parts = [f"gradsync audit: nothing could be audited: {verdict.reason}"]
        return "\n".join(parts + ([_wrapped(f"-> {verdict.advice}")] if verdict.advice else []))
    p = "inf" if math.isinf(verdict.p) else f"{verdict.p:g}"
    what = f"{_count(verdict.steps, 'step')}, {_count(verdict.ranks, 'rank')}, order {p}"
    said = [f"gradsync audit: {what}; shown: the step that differs most"]
    said += [_wrapped(verdict.node), ""] if verdict.node else [""]
    said += _table([_HEADINGS, *(_cells(line) for line in verdict.lines)])
    for line in (line for line in verdict.lines if not line.group):
        said += ["", *_sentences(verdict, line)]
    if verdict.problems:
        said += ["", "wrong, whatever the norms are", *(_with_next_step(problem) for problem in verdict.problems)]
    if verdict.findings:
        said += ["", "also found", *(_with_next_step(finding) for finding in verdict.findings)]
    if verdict.tolerance_text:
        said += ["", _wrapped(f"agrees: within {verdict.tolerance:.2g} ({verdict.tolerance_text})", "")]
    return "\n".join(said)


def _sentences(verdict: Verdict, line: Line) -> list[str]:
    """What was compared, by how much it differs, why, and what to do."""
    allowed = f"allowed {verdict.tolerance:.2g}"
    if line.verdict == "not seen":
        return [_wrapped(f"{line.name}: not seen: {line.why}", ""), _wrapped(f"-> {line.fix}", "    ")]
    what = f"{_count(line.tensors, 'tensor')} on {_count(verdict.ranks, 'rank')}"
    if line.verdict == "agrees":
        most = "are not finite, both" if line.difference is None else f"differ by at most {abs(line.difference):.1e}"
        todo = "nothing to do" if not verdict.node else "that the other nodes hold the same is not known"
        return [_wrapped(f"{line.name}: agrees: the norms of {what} {most}, {allowed}; {todo}", "")]
    by = "is not finite, or ours is not," if line.difference is None else f"is off by {_percent(line.difference)}"
    if line.difference is not None and line.difference >= _LARGE:
        by = f"is {_percent(line.difference)} the exact one"
    head = f"{line.name}: the norm of {what} {by} in step {line.step}, {allowed}"
    if line.difference is not None and verdict.tolerance < abs(line.difference) < _HARMLESS:
        head += f"; a float32 rounds more than this, so --tolerance {_HARMLESS:g} accepts it"
    why = "likely cause" if len(line.causes) == 1 else f"{len(line.causes)} causes predict this"
    why += "" if len(line.causes) < 2 else "; these steps cannot tell them apart"
    if line.scale != 1.0 and len(line.causes) > 1:
        why = "besides the loss scale it is wrong"
    why += "" if not verdict.node else "; mistakes in sums over other nodes are not tried"
    said = [_wrapped(head, ""), f"  {why}"]
    for cause in line.causes:
        said.append(_wrapped(f"* {cause.kind}: {cause.text}"))
        if cause.fix:
            said.append(_wrapped(f"-> {cause.fix}", "    "))
    return said


def _with_next_step(text: str) -> str:
    """A finding, with what to do on a line of its own."""
    found, arrow, step = text.partition(" -> ")
    return _wrapped(f"* {found}") + (f"\n{_wrapped(f'-> {step}', '    ')}" if arrow else "")


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The same numbers; those that JSON cannot carry become "NaN", "Infinity" or "-Infinity"."""
    return {
        "exit_code": verdict.exit_code,
        "steps": verdict.steps,
        "ranks": verdict.ranks,
        "norm_type": _number(verdict.p),
        "tolerance": verdict.tolerance,
        "tolerance_text": verdict.tolerance_text,
        "lines": [
            {
                "name": line.name,
                "norm_group": line.group,
                "tensors": line.tensors,
                "verdict": line.verdict,
                "step": line.step,
                "ours": _number(line.ours),
                "theirs": [_number(norm) for norm in line.theirs],
                "theirs_implied": line.implied,
                "difference": _number(line.difference),
                "loss_scale": line.scale,
                "not_seen": line.why,
                "causes": [
                    {"kind": c.kind, "text": c.text, "fix": c.fix, "groups": list(c.groups), "axis": c.axis}
                    for c in line.causes
                ],
            }
            for line in verdict.lines
        ],
        "problems": list(verdict.problems),
        "findings": list(verdict.findings),
        "replicas_differ": verdict.replicas_differ,
        "node": verdict.node,
        "reason": verdict.reason,
        "advice": verdict.advice,
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _cells(line: Line) -> tuple[str, ...]:
    theirs = "" if not line.theirs else f"{line.theirs[0]:.8g}"
    if len(line.theirs) > 1:
        low, high = min(line.theirs), max(line.theirs)
        theirs = f"{low:.5g}…{high:.5g}"
    theirs += " (implied)" if line.implied else ""
    difference = "" if line.difference is None else _percent(line.difference)
    ours = "" if line.ours is None else f"{line.ours:.8g}"
    return ("  " if line.group else "") + line.name, str(line.tensors), ours, theirs, difference, line.verdict


def _percent(difference: float) -> str:
    if difference >= _LARGE:
        return f"{difference + 1:.6g} ×"
    return f"{100 * difference:+.2f} %" if abs(difference) >= 1e-4 else f"{difference:+.1e}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        first, *rest, last = zip(row, widths, strict=True)
        numbers = "  ".join(cell.rjust(width) for cell, width in rest)
        lines.append(f"  {first[0].ljust(first[1])}  {numbers}  {last[0]}".rstrip())
    return lines


def _wrapped(text: str, indent: str = "  ") -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  "))
