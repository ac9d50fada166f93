"""libgradsync_kernels: gradients are measured and multiplied where they lie, on a GPU, on the trainer's own stream.

The library needs no daemon: it is loaded into the trainer's process, works in torch's context and on its current
stream, and takes its memory from torch. kernels/library/gradsync_kernels.h describes the interface.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
from array import array
from collections.abc import Sequence
from ctypes import c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch

from gradsync.errors import UsageError

from ._gate import Gate

__all__ = ["KERNELS_DTYPES", "KernelLibrary", "KernelPasses", "kernel_library"]

_ABI = 3
_ALIGNMENT = 256
_FILE = "libgradsync_kernels.so"
_BESIDE = Path(__file__).resolve().parents[2] / "lib" / _FILE  # where wheels have it
_VARIABLE = "GRADSYNC_KERNELS"
_OFF = "off"
KERNELS_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_log = logging.getLogger("gradsync")


class _Tensor(ctypes.Structure):
    _fields_ = (("count", c_uint64), ("dtype", c_uint32), ("reserved", c_uint32))


class KernelLibrary:
    """The loaded library. Its functions release the interpreter while they run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Loads it.

        Raises:
            OSError: it cannot be loaded, or is none of ours.
        """
        self.path = str(path)
        self._calls = _declared(ctypes.CDLL(self.path), self.path)
        self.device_type = _text(self._calls.gradsync_kernels_device())  #: of the memory that it reads, as torch has it
        self.version = _text(self._calls.gradsync_kernels_version())
        self._refusals: dict[torch.device, str] = {}

    def __repr__(self) -> str:
        return f"gradsync kernels {self.version}"

    def refusal(self, device: torch.device) -> str:
        """Why the passes cannot run on this device, or nothing; it is looked up, and said, once."""
        if device not in self._refusals:
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                failed = self._calls.gradsync_kernels_check()
            self._refusals[device] = _text(self._calls.gradsync_kernels_error()) if failed else ""
            if failed:
                said = self._refusals[device]
                _log.warning("torch measures the gradients on %s, because %s cannot: %s", device, self, said)
        return self._refusals[device]

    def passes(self, kinds: Sequence[tuple[int, torch.dtype]], device: torch.device) -> KernelPasses:
        """Passes over tensors of these numbers of elements and dtypes, on this device."""
        return KernelPasses(self._calls, kinds, device)


class KernelPasses:
    """The tables of some tensors, and the memory of the passes over them. Calls belong to one thread."""

    def __init__(self, calls: Any, kinds: Sequence[tuple[int, torch.dtype]], device: torch.device) -> None:
        self._calls = calls
        self._device = device
        self._count = len(kinds)
        self._gate: Gate | None = None
        self._norm: torch.Tensor | None = None
        described = (_Tensor * max(1, len(kinds)))(
            *(_Tensor(numel, KERNELS_DTYPES[dtype], 0) for numel, dtype in kinds)
        )
        self._table = calls.gradsync_table_create(described, len(kinds))
        if not self._table:
            raise self._failure("its tables cannot be made")
        self._owned: torch.Tensor | None = None  # memory of the passes; made with the first
        self._memory = 0
        self._stream: Any = None  # the one of the last pass

    def measure(self, addresses: Sequence[int], p: float, fingerprint: bool, rows: int) -> None:
        """Fills bytes 8 to 63 of the rows at this address of the host, one of 64 bytes for each tensor.

        An address of 0 is a tensor that is absent; its row is all zeros, but for the fingerprint.
        """
        with self._on_device() as stream:
            where = array("Q", addresses)
            given = where.buffer_info()[0]
            self._check(self._calls.gradsync_measure(self._table, self._memory, given, p, fingerprint, rows, stream))

    def scale(self, addresses: Sequence[int], coefficient: float) -> None:
        """Multiplies every tensor that is not absent."""
        with self._on_device() as stream:
            where = array("Q", addresses)
            given = where.buffer_info()[0]
            self._check(self._calls.gradsync_scale(self._table, self._memory, given, coefficient, stream))

    def gate(self) -> Gate:
        """The gate of these passes, made once.

        Raises:
            RuntimeError: the device cannot wait for memory, in words.
        """
        if self._gate is None:
            with self._on_device() as stream:
                made = self._calls.gradsync_gate_create(self._table, stream)
            if not made:
                raise self._failure("a stream cannot wait there")
            self._gate = Gate(self._calls, made, self._count)
        return self._gate

    def defer(
        self, addresses: Sequence[int], p: float, fingerprint: bool, norm: torch.Tensor, patience_s: float
    ) -> None:
        """Enqueues `measure` with its rows at the gate, a wait for the gate's release, and `scale`; waits for nothing.

        `norm`, a number on the device, is what the release says. Who releases within `patience_s` of the rows decides.
        """
        gate = self.gate()
        with self._on_device() as stream:
            where = array("Q", addresses)
            given = where.buffer_info()[0]
            how = (p, fingerprint, gate.handle, patience_s, norm.data_ptr(), norm.element_size())
            self._check(self._calls.gradsync_defer(self._table, self._memory, given, *how, stream))
        self._norm = norm  # until the next step: memory of an emulation is not kept for the stream when it is dropped

    def __del__(self) -> None:
        self._gate = None  # before its table
        if getattr(self, "_table", None):
            self._calls.gradsync_table_destroy(self._table)
            self._table = None

    @contextlib.contextmanager
    def _on_device(self) -> Any:
        """The stream to enqueue on, with this device as the current one."""
        if self._device.type != "cuda":
            self._load(None)
            yield None
            return
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            if self._owned is None:
                self._load(stream.cuda_stream)
            elif stream != self._stream:
                # Passes over one table share its memory, so they keep their order whatever streams they are on.
                stream.wait_stream(self._stream)
                self._owned.record_stream(stream)
            self._stream = stream
            yield stream.cuda_stream

    def _load(self, stream: int | None) -> None:
        if self._owned is not None:
            return
        size = self._calls.gradsync_table_memory(self._table)
        self._owned = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=self._device)
        self._memory = -(-self._owned.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        self._check(self._calls.gradsync_table_load(self._table, self._memory, stream))

    def _check(self, failed: int) -> None:
        if failed:
            raise self._failure("a pass over gradients failed")

    def _failure(self, what: str) -> RuntimeError:
        said = _text(self._calls.gradsync_kernels_error())
        return RuntimeError(f"gradsync kernels on {self._device}: {what}: {said}")


@functools.cache
def kernel_library() -> KernelLibrary | None:
    """The library that `GRADSYNC_KERNELS` names, or the one that came with this package; None without either.

    `GRADSYNC_KERNELS=off` leaves everything to torch.

    Raises:
        UsageError: the one that was named cannot be loaded.
    """
    named = os.environ.get(_VARIABLE, "")
    if named == _OFF:
        return None
    if named:
        try:
            return KernelLibrary(named)
        except OSError as error:
            raise UsageError(
                f"{_VARIABLE}={named}: {error}; give the path of {_FILE} of this version, or "
                f"'{_OFF}' to let torch measure the gradients"
            ) from None
    if not _BESIDE.exists():
        return None
    try:
        return KernelLibrary(_BESIDE)
    except OSError as error:
        _log.warning("%s cannot be loaded, so torch measures the gradients: %s", _BESIDE, error)
        return None


def _declared(library: ctypes.CDLL, path: str) -> Any:
    """The functions with their types, after the check that they are those of this interface."""
    table, address, stream, gate = c_void_p, c_void_p, c_void_p, c_void_p
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "gradsync_kernels_version": (c_char_p, ()),
        "gradsync_kernels_device": (c_char_p, ()),
        "gradsync_kernels_error": (c_char_p, ()),
        "gradsync_kernels_check": (c_int, ()),
        "gradsync_table_create": (table, (c_void_p, c_uint32)),
        "gradsync_table_destroy": (None, (table,)),
        "gradsync_table_memory": (c_size_t, (table,)),
        "gradsync_table_load": (c_int, (table, address, stream)),
        "gradsync_measure": (c_int, (table, address, address, c_double, c_int, address, stream)),
        "gradsync_scale": (c_int, (table, address, address, c_double, stream)),
        "gradsync_gate_create": (gate, (table, stream)),
        "gradsync_gate_destroy": (None, (gate,)),
        "gradsync_gate_rows": (c_void_p, (gate,)),
        "gradsync_gate_await_rows": (c_int, (gate,)),
        "gradsync_gate_release": (c_int, (gate, c_double, c_int, c_double)),
        "gradsync_defer": (
            c_int,
            (table, address, address, c_double, c_int, gate, c_double, c_void_p, c_uint32, stream),
        ),
    }
    try:
        library.gradsync_kernels_abi.restype = c_uint32
        abi = library.gradsync_kernels_abi()
    except AttributeError:
        raise OSError(f"{path} is no {_FILE}") from None
    if abi != _ABI:
        raise OSError(f"{path} has interface {abi}, and this client has {_ABI}: install both from one version")
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library


def _text(text: bytes | None) -> str:
    return "" if text is None else text.decode("utf-8", "replace")
