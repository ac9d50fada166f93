"""A tracker that always works offline: one JSON object per line."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType

from gradsync._wire import dump, encode_number

__all__ = ["JsonlTracker"]

_log = logging.getLogger("gradsync")
_KEPT_LINES = 10_000  # while the disk refuses


class JsonlTracker:
    """Appends `{"step": …, name: value, …}` for every `every`-th step; batched, and flushed at close."""

    def __init__(self, path: str | os.PathLike[str], every: int = 50, *, batch: int = 1) -> None:
        self._path = os.fspath(path)
        self._every = max(1, every)
        self._batch = max(1, batch)
        self._lines: list[str] = []
        self._warned = False

    def log(self, step: int, values: Mapping[str, float | Sequence[str] | None]) -> None:
        """Records the values if the step is due; never raises. A value may also be None, or a list of texts."""
        if step % self._every != 0:
            return
        try:
            line = dump({"step": int(step), **{name: _encoded(value) for name, value in values.items()}})
        except Exception as error:
            self._warn(error)
            return
        self._lines.append(line)
        if len(self._lines) >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Writes what is batched; what cannot be written now is tried again next time."""
        if not self._lines:
            return
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("\n".join(self._lines) + "\n")
        except Exception as error:
            self._warn(error)
            del self._lines[:-_KEPT_LINES]
            return
        self._lines.clear()

    def close(self) -> None:
        """Writes what is batched."""
        self.flush()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s cannot be written (%s); training goes on, lines are kept", self._path, error)

    def __enter__(self) -> JsonlTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _encoded(value: float | Sequence[str] | None) -> float | str | list[str] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, (list, tuple)) else encode_number(value)  # type: ignore[arg-type]
