"""Says when something about the observed steps begins to be wrong, and when that is over; never once per step.

A condition is over when it was not seen for `_CALM` steps. If it comes back, it has to stay away twice as long the next
time, so the number of lines grows with the logarithm of the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gradsync import StepReport
from gradsync._step._declared import some_of
from gradsync._step._reduced import Answer
from gradsync._step._report import Finding

__all__ = ["Conditions", "Kind"]

_CALM = 10
Kind = Finding | Literal["difference"]  #: what a step may have that is wrong
_NAMES: dict[Kind, str] = {
    "difference": "a framework's norm that differs",
    "nonfinite": "NaN or infinity",
    "divergence": "copies that differ",
    "missing": "gradients that only some ranks have",
    "absent": "gradients that no rank has",
    "spike": "spikes",
}
_SHOWN = 3


@dataclass
class _Condition:
    """`calm` is how many steps without it end it, `quiet` how many have passed."""

    calm: int = _CALM
    quiet: int = 0
    first: int = 0
    last: int = 0
    seen: int = 0


class Conditions:
    """What is equal on all ranks is said by rank 0, and a difference by each rank whose framework's norm differs."""

    def __init__(self, rank: int, say: Callable[[str], None]) -> None:
        self._rank = rank
        self._say = say
        self._open: dict[Kind, _Condition] = {}
        self._over: dict[Kind, int] = {}  # how long each that is over has to stay away the next time

    def see(
        self,
        answer: Answer,
        step: int,
        theirs: float | None,
        limit: float,
        checked: bool,
        report: Callable[[], StepReport],
        counts: Callable[[Finding], bool] = lambda _: True,
    ) -> dict[Kind, str]:
        """Takes the result of a step; `report` decodes it. `limit` is the relative difference that rounding explains;
        `checked` says that the bits of copies were compared in this step, `counts` whether a finding means anything.

        Returns what was found in this step, with the line that was said of it where it began.

        Raises:
            ProtocolError: the answer cannot be read.
        """
        norm, found = answer.findings()
        differs = theirs is not None and _differs(theirs, norm, limit)
        if not (found or differs or self._open):
            return {}
        found = [kind for kind in found if counts(kind)]
        kinds: list[Kind] = [*found] if self._rank == 0 else []
        if differs:
            kinds.insert(0, "difference")
        seen = {kind: self._saw(kind, step, limit, report) for kind in kinds}
        for kind in [kind for kind in self._open if kind not in kinds]:
            if checked or kind != "divergence":  # bits that were not compared say nothing
                self._missed(kind)
        return seen

    def close(self) -> None:
        """Says what had not ended."""
        for kind, one in self._open.items():
            self._say(f"not over when the observation ended: {_NAMES[kind]}{_course(one)}")
        self._open.clear()

    def _saw(self, kind: Kind, step: int, limit: float, report: Callable[[], StepReport]) -> str:
        one, text = self._open.get(kind), ""
        if one is None:
            text = _text(kind, report(), limit)
            self._say(f"step {step}: {text}")
            calm = self._over.get(kind, 1 if kind == "divergence" else _CALM)
            one = self._open[kind] = _Condition(calm=calm, first=step)
        one.last, one.quiet = step, 0
        one.seen += 1
        return text

    def _missed(self, kind: Kind) -> None:
        one = self._open[kind]
        one.quiet += 1
        if one.quiet >= one.calm:
            del self._open[kind]
            self._over[kind] = 2 * one.calm
            self._say(f"over: {_NAMES[kind]}{_course(one)}")


def _course(one: _Condition) -> str:
    return f", seen in {one.seen} of the steps {one.first} to {one.last}"


def _differs(theirs: float, ours: float, limit: float) -> bool:
    if math.isfinite(theirs) and math.isfinite(ours):
        return abs(theirs - ours) > limit * abs(ours)
    return math.isfinite(theirs) != math.isfinite(ours)  # an infinity beside a NaN stops a run all the same


def _text(kind: Kind, report: StepReport, limit: float) -> str:
    if kind == "difference":
        return _difference(report, limit)
    if kind == "nonfinite":
        return _nonfinite(report)
    if kind == "divergence":
        listed = _listed(map(str, report.divergence))
        return f"gradients that should be copies differ in {len(report.divergence)} tensors: {listed}"
    if kind == "missing":
        listed = _listed(f"'{one.tensor}' (not {_ranks(one.ranks)})" for one in report.missing)
        return f"only some ranks have a gradient of {len(report.missing)} tensors: {listed}"
    if kind == "absent":
        return f"no rank has a gradient of {len(report.absent)} tensors: {some_of(report.absent)}"
    return _spike(report)


def _difference(report: StepReport, limit: float) -> str:
    theirs, ours = report.theirs, report.norm
    if ours == 0 and report.absent:
        return (
            f"the framework's norm is {theirs:.6g}, and there was no gradient to compare it with: no rank has one of "
            f"{len(report.absent)} tensors ({some_of(report.absent)}); observe before gradients are dropped"
        )
    text = f"the framework's norm is {theirs:.6g}, and that of the gradients {ours:.6g}"
    if report.relative_difference is not None:
        text += f" ({100 * report.relative_difference:+.3g} %, where rounding explains {100 * limit:.1g} %)"
    return f"{text}; `gradsync audit` says which mistake makes such a norm"


def _nonfinite(report: StepReport) -> str:
    if not report.nonfinite:
        return f"the norm is {report.norm}, although every gradient is finite"
    listed = _listed(
        f"'{one.tensor}' ({one.count} values"
        + (f", {_ranks([source.rank for source in one.inputs])})" if one.inputs else ")")
        for one in report.nonfinite
    )
    return f"NaN or infinity in the gradients of {len(report.nonfinite)} tensors: {listed}"


def _spike(report: StepReport) -> str:
    found = []
    for group in report.groups:
        found += [f"{one.policy} ({one.reason})" for one in group.watch if one.spike]
        found += [group.reason] if group.spike else []
    return f"the norm {report.norm:.6g} is a spike: {_listed(found)}"


def _listed(texts: Iterable[str]) -> str:
    given = list(texts)
    more = f" and {len(given) - _SHOWN} more" if len(given) > _SHOWN else ""
    return ", ".join(given[:_SHOWN]) + more


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
