"""Where a rank of `gradsync observe` writes: warnings to stderr, a tally for the summary, a line per step."""

from __future__ import annotations

import sys
from pathlib import Path

from gradsync._observe._tally import Difference, Tally, TallyFile
from gradsync.trackers import JsonlTracker

from .._reduced._observation import Result

__all__ = ["Journal"]


class Journal:
    """Rank 0 writes the line of each step, because the norm and what is wrong are equal on all ranks."""

    def __init__(self, folder: Path, rank: int, world_size: int, lines: str | None) -> None:
        self.tally = Tally(rank, world_size)
        self._file = TallyFile(folder, self.tally)
        self._lines = None if lines is None or rank != 0 else JsonlTracker(lines, every=1)

    def say(self, text: str) -> None:
        """Not by the logger of the script's process, whose settings are the script's."""
        sys.stderr.write(f"gradsync observe: {text}\n")

    def note(self, text: str) -> None:
        """Says what is wrong with the observation itself, which the summary repeats."""
        self.say(text)
        self.tally.note(text)
        self._file.write()

    def told(self, result: Result) -> None:
        """Takes the result of a step."""
        tally, step = self.tally, result.step
        tally.observed += 1
        tally.last = step
        difference = result.relative_difference
        if result.theirs is not None:
            tally.compared += 1
        if difference is not None and (tally.largest is None or abs(difference) > abs(tally.largest.relative)):
            tally.largest = Difference(step, result.theirs or 0.0, result.norm, difference, result.limit)
        for kind, text in result.seen.items():
            tally.saw(kind, step, text)
        self._file.write()
        if self._lines is not None:
            values = {
                "norm": result.norm,
                "theirs": result.theirs,
                "relative_difference": difference,
                "findings": [*result.seen],
            }
            self._lines.log(step, values)

    def finding(self, kind: str, step: int, text: str) -> None:
        """Counts what the watcher itself found, and says it once."""
        if kind not in self.tally.seen:
            self.say(f"rank {self.tally.rank}: step {step}: {text}")
        self.tally.saw(kind, step, text)
        self._file.write()

    def skipped(self, steps: int) -> None:
        """Steps so far that were not observed."""
        self.tally.skipped = steps
        self._file.write()

    def declared(self, tensors: int) -> None:
        self.tally.tensors = tensors
        self._file.write()
