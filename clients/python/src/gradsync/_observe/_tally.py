"""What one rank has seen so far, in a small file that is rewritten every step, so that a rank that is killed loses
nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Difference", "Seen", "Tally", "TallyFile", "read_tallies"]

_NOTES = 20  # that are kept; each is said once, and a run has few


@dataclass(slots=True)
class Seen:
    """One kind of finding: in how many steps it was, the first and the last of them, and what was said of the first."""

    count: int
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A step in which the framework's norm was compared; `limit` is the relative difference that rounding explains."""

    step: int
    theirs: float
    norm: float
    relative: float
    limit: float


@dataclass(slots=True)
class Tally:
    """`skipped` steps were not observed, because the daemon was slow or gone; `last` is the newest with a result."""

    rank: int
    world_size: int
    tensors: int = 0
    observed: int = 0
    compared: int = 0
    skipped: int = 0
    last: int = -1
    largest: Difference | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def saw(self, kind: str, step: int, text: str) -> None:
        one = self.seen.setdefault(kind, Seen(0, step, step, text))
        one.count, one.last = one.count + 1, step

    def note(self, text: str) -> None:
        if len(self.notes) < _NOTES:
            self.notes.append(text)


class TallyFile:
    """The file of one rank."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.tally = tally
        path = folder / f"tally-{tally.rank}-{os.getpid()}.json"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._length = 0

    def write(self) -> None:
        """One write over what was there, so that the file is whole at any moment between two calls."""
        text = json.dumps(asdict(self.tally), default=str, allow_nan=True).encode()
        self._length = max(self._length, len(text))
        os.pwrite(self._descriptor, text.ljust(self._length), 0)


def read_tallies(folder: Path) -> list[Tally]:
    """Those of all processes that observed; a rank that was started again has one for each of its lives."""
    paths = sorted(folder.glob("tally-*.json"), key=lambda path: path.stat().st_mtime)
    found = [_read(path) for path in paths]
    return sorted((one for one in found if one is not None), key=lambda one: one.rank)


def _read(path: Path) -> Tally | None:
    try:
        wire: dict[str, Any] = json.loads(path.read_text("utf-8"))
        largest = wire.pop("largest")
        seen: Mapping[str, Any] = wire.pop("seen")
        return Tally(
            **wire,
            largest=None if largest is None else Difference(**largest),
            seen={kind: Seen(**one) for kind, one in seen.items()},
        )
    except (OSError, ValueError, TypeError, KeyError):  # a process that was ended before its first write
        return None
