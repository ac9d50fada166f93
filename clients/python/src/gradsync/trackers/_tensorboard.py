"""TensorBoard: an event file of scalars, made of TensorBoard's own messages and record writer.

`SummaryWriter` has a thread of its own, which does not survive a full disk. Here the feed's thread writes, and takes
back what was written by half.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from ._lines import append
from ._record import Record

__all__ = ["TensorBoardTarget"]


class TensorBoardTarget:
    """Writes into `folder`; by default runs/gradsync_TIME_HOST, as SummaryWriter names them.

    Where a run is resumed at `first_step`, TensorBoard drops what earlier files of the folder have from there on.
    """

    more = False

    def __init__(self, folder: str | None = None, first_step: int | None = None) -> None:
        """Imports tensorboard.

        Raises:
            ImportError: it is not installed.
        """
        named = f"runs/gradsync_{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"
        self._folder = Path(named if folder is None else folder)
        self.name = f"TensorBoard in {self._folder}"
        self._first_step = first_step
        self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._record_writer: Any = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self._descriptor = -1

    def begin(self) -> None:
        """Nothing belongs to the training thread."""

    def send(self, records: deque[Record]) -> None:
        if self._descriptor < 0:
            self._open()
        events = [self._event(record) for record in records]
        self._write(events)
        records.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, which is that of time.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.gradsync"
        self._descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        first = [self._events.Event(wall_time=time.time(), file_version="brain.Event:2")]
        if self._first_step is not None:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            first.append(self._events.Event(wall_time=time.time(), step=self._first_step, session_log=start))
        try:
            self._write(first)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def _event(self, record: Record) -> Any:
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in record.values.items()]
        summary = self._summaries.Summary(value=values)
        return self._events.Event(wall_time=record.time_ms / 1000, step=record.step, summary=summary)

    def _write(self, events: list[Any]) -> None:
        whole = _Bytes()
        writer = self._record_writer(whole)
        for event in events:
            writer.write(event.SerializeToString())
        append(self._descriptor, bytes(whole.bytes))


class _Bytes:
    """A file in memory, as far as a record writer wants one."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def write(self, data: bytes) -> None:
        self.bytes += data
