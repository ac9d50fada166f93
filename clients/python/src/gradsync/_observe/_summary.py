"""What a run was found to be: the tallies of all ranks as one summary, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ._tally import Difference, Seen, Tally

__all__ = ["FINDINGS", "Summary", "as_json", "as_text"]

#: what a step may have that is wrong, the gravest first, and what to do about it
FINDINGS = {
    "nonfinite": ("NaN or infinity", "look at that tensor on that rank; a loss scale skips such steps"),
    "divergence": ("copies that differ", "find what made those ranks differ; start again from equal weights"),
    "still_scaled": ("scaled gradients", "call scaler.unscale_(optimizer) before the clip"),
    "difference": ("a norm that differs", "`gradsync audit -- COMMAND` names the mistake"),
    "missing": ("missing gradients", "see whether those ranks skip a part of the model"),
    "spike": ("spikes", "see docs/clipping.md: a policy that adapts clips them"),
}
_RIGHT = {"absent": "absent gradients"}  # often right: unused parameters
_NOTHING = "no process called a clip function of torch"


@dataclass(frozen=True, slots=True)
class Summary:
    """Steps are clip calls, counted from 0. `ended` says how the command failed; None: it did not."""

    tallies: Sequence[Tally]
    ended: str | None = None
    lines: str | None = None

    @property
    def first(self) -> Tally | None:
        """What all ranks know is in the tally of rank 0, or of the lowest rank that there is."""
        return next((one for one in self.tallies if one.observed), self.tallies[0] if self.tallies else None)

    @property
    def observed(self) -> int:
        return max((one.observed for one in self.tallies), default=0)

    @property
    def largest(self) -> tuple[int, Difference] | None:
        """The rank whose framework's norm was furthest off in a step, and that step."""
        found = [(one.rank, one.largest) for one in self.tallies if one.largest is not None]
        return max(found, key=lambda pair: abs(pair[1].relative), default=None)

    @property
    def seen(self) -> dict[str, Seen]:
        """Each kind as the rank has it that saw it first."""
        found: dict[str, Seen] = {}
        for tally in self.tallies:
            for kind, one in tally.seen.items():
                if kind not in found or one.first < found[kind].first:
                    found[kind] = one
        return {kind: found[kind] for kind in (*FINDINGS, *_RIGHT) if kind in found}

    @property
    def wrong(self) -> list[str]:
        return [kind for kind in self.seen if kind in FINDINGS]

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for tally in self.tallies for note in tally.notes))

    @property
    def exit_code(self) -> int:
        """The exit status with `--strict`."""
        return 1 if self.wrong else 2 if not self.observed else 0


def as_text(summary: Summary) -> str:
    rows = [_head(summary)]
    if summary.observed:
        rows += [_row("largest difference", _largest(summary))]
        rows += [_row(_name(kind), _finding(one)) for kind, one in summary.seen.items()]
        rows += [] if summary.seen else [_row("found", "nothing else")]
    rows += [_row("note", note) for note in summary.notes]
    rows += [] if summary.ended is None else [_row("command", summary.ended)]
    rows += [_row("lines", summary.lines or "none were kept; --jsonl FILE writes one per step")]
    return "\n".join([*rows, _row("next", _next(summary))])


def as_json(summary: Summary) -> dict[str, Any]:
    """Numbers that are not finite are texts, as in all JSON of gradsync."""
    first, largest = summary.first, summary.largest
    return {
        "steps": summary.observed,
        "skipped": max((one.skipped for one in summary.tallies), default=0),
        "compared": 0 if first is None else first.compared,
        "ranks": len({one.rank for one in summary.tallies}),
        "world_size": 0 if first is None else first.world_size,
        "tensors": 0 if first is None else first.tensors,
        "largest_difference": None if largest is None else {"rank": largest[0], **asdict(largest[1])},
        "findings": {kind: asdict(one) for kind, one in summary.seen.items()},
        "notes": summary.notes,
        "command": summary.ended,
        "lines": summary.lines,
        "next": _next(summary),
    }


def _head(summary: Summary) -> str:
    first = summary.first
    if first is None:
        return f"gradsync observe: nothing was observed: {_NOTHING}"
    ranks = f"{len({one.rank for one in summary.tallies})} of {first.world_size} ranks"
    skipped = max(one.skipped for one in summary.tallies)
    left = f", {skipped} not" if skipped else ""
    return f"gradsync observe: {summary.observed} steps observed{left}, {ranks}, {first.tensors} tensors"


def _largest(summary: Summary) -> str:
    found = summary.largest
    if found is None:
        return "no norm of the script could be compared"
    rank, one = found
    explained = "within" if abs(one.relative) <= one.limit else "beyond"
    return (
        f"{100 * one.relative:+.2g} % in step {one.step} on rank {rank}: the script's norm {one.theirs:.8g}, exact "
        f"{one.norm:.8g}; {explained} the {100 * one.limit:.1g} % that rounding explains"
    )


def _finding(one: Seen) -> str:
    steps = f"step {one.first}" if one.count == 1 else f"{one.count} steps, {one.first} to {one.last}"
    return f"{steps}: {one.text}" if one.text else steps


def _name(kind: str) -> str:
    return FINDINGS[kind][0] if kind in FINDINGS else _RIGHT[kind]


def _next(summary: Summary) -> str:
    if summary.wrong:
        return FINDINGS[summary.wrong[0]][1]
    if summary.ended is not None:
        return "mend the command first"
    if summary.notes:
        return "see the note"
    if not summary.observed:
        return "call gradsync.torch.observe(norm) in a script that clips by functions of its own (docs/observe.md)"
    largest = summary.largest
    if largest is None or not math.isfinite(largest[1].norm):
        return "see docs/observe.md for norms that cannot be compared"
    return "nothing to mend; `gradsync audit` checks also what is never clipped"


def _row(name: str, text: str) -> str:
    return f"  {name:<20}  {text}"
