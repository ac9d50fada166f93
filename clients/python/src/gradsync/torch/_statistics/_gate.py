"""Where a stream waits for the coefficient of a step (docs/adr/0033-a-stream-waits-for-its-coefficient.md)."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any

import torch

__all__ = ["Gate"]

_ROW_BYTES = 64


class Gate:
    """The gate of the passes over one table. Any thread may release, which needs nothing of CUDA."""

    def __init__(self, calls: Any, handle: int, count: int) -> None:
        self._calls = calls
        self._process = os.getpid()
        self.handle = handle
        memory = (ctypes.c_char * max(_ROW_BYTES, _ROW_BYTES * count)).from_address(calls.gradsync_gate_rows(handle))
        self.rows = torch.frombuffer(memory, dtype=torch.int64).view(-1, 8)[:count]  #: valid while the gate is there

    def await_rows(self) -> bool:
        """Waits until the rows of the step are there, without the interpreter. False: it was released before."""
        return not self._calls.gradsync_gate_await_rows(self.handle)

    def release(self, coefficient: float, zero: bool, norm: float) -> bool:
        """Lets the stream multiply, or write zeros. False: it was released before, and this changed nothing."""
        return not self._calls.gradsync_gate_release(self.handle, coefficient, zero, norm)

    def fail(self) -> bool:
        """Lets the stream write zeros. False: it was released before."""
        return self.release(0.0, True, math.nan)

    def __del__(self) -> None:
        if os.getpid() == self._process:  # a forked child has not the thread that this ends
            self._calls.gradsync_gate_destroy(self.handle)
