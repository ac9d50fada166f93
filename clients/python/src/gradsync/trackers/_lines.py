"""A file of JSON lines, one for each record; what `gradsync report` and `gradsyncd policy replay` read."""

from __future__ import annotations

import os
from collections import deque

from gradsync._wire import dump

from ._record import Record

__all__ = ["LinesTarget", "append"]


class LinesTarget:
    """Appends `{"step": …, "time_ms": …, name: value, …}`; a norm that is not finite is a text, as in all JSON here."""

    more = True

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = os.path.abspath(path)  # a script may change its folder

    def begin(self) -> None:
        """Nothing belongs to the training thread."""

    def send(self, records: deque[Record]) -> None:
        lines = "".join(dump(_line(record)) + "\n" for record in records)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            append(descriptor, lines.encode())
        finally:
            os.close(descriptor)
        records.clear()

    def close(self) -> None:
        """Nothing is open."""


def append(descriptor: int, data: bytes) -> None:
    """Appends all of it to a file, or nothing.

    Raises:
        OSError: the disk is full, for instance.
    """
    before = os.fstat(descriptor).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        if os.fstat(descriptor).st_size > before:
            os.ftruncate(descriptor, before)
        raise


def _line(record: Record) -> dict[str, object]:
    return {"step": record.step, "time_ms": record.time_ms, **record.values, **record.more}
