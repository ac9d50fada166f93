"""What mode `observe` knows of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import gradsync
from gradsync._step._report import relative_difference

from ._conditions import Kind

__all__ = ["Observation", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of one step as soon as it has a result; `limit` is the difference that rounding explains."""

    step: int
    norm: float
    theirs: float | None
    limit: float
    seen: Mapping[Kind, str]  #: what was found, with the line that was said of it where it began

    @property
    def relative_difference(self) -> float | None:
        """As in a report."""
        return relative_difference(self.theirs, self.norm)


class Observation:
    """One step: the report, and the framework's own norm where it was given."""

    def __init__(
        self, decode: Callable[[], gradsync.StepReport], theirs: float | None, names: frozenset[str] | None = None
    ) -> None:
        self.theirs = theirs
        self._decode = decode
        self._names = names
        self._report: gradsync.StepReport | None = None

    @property
    def report(self) -> gradsync.StepReport:
        """The report, which is decoded when it is read for the first time, because most are never read."""
        if self._report is None:
            report, names = self._decode(), self._names
            absent = report.absent if names is None else tuple(name for name in report.absent if name in names)
            self._report = replace(report, theirs=self.theirs, absent=absent)
        return self._report

    @property
    def relative_difference(self) -> float | None:
        """That of the report."""
        return self.report.relative_difference

    def __repr__(self) -> str:
        return f"Observation(report={self.report!r}, theirs={self.theirs!r})"
