"""Whether the daemon's worker of a GPU reaches memory of this process, tried before anything is declared."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradsync._wire_errors import local_error
from gradsync.errors import ImportRefused, UsageError

from ._arena import GpuArena

if TYPE_CHECKING:
    import torch

__all__ = ["GpuProbe", "probe_gpu"]

_PATTERN_BYTES = 64
_EXPORTED = ("transport", "device", "handle", "allocation_bytes", "offset")
_OTHER_MEMORY_HINT = "keep the gradients on the CPU, and report it with what gradsyncd doctor says"


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """What the worker of a GPU said of memory that it mapped, read, wrote and closed; times are seconds."""

    device: str  #: UUID
    mapped_bytes: int  #: of the whole allocation
    open_s: float  #: with the start of the worker's context, where nothing used the GPU before
    copy_s: float
    close_s: float


def probe_gpu(
    call: Callable[[str, Mapping[str, Any]], dict[str, Any]], device: Any, memory: torch.Tensor | None
) -> GpuProbe:
    """`call` sends ipc.probe. What was in `memory` is in it again afterwards.

    Raises:
        UsageError: `memory` is no tensor that can be shared, or `device` names no GPU.
        NoGpu: this process, or the daemon, sees no such GPU.
        ImportRefused: CUDA does not share it, the worker cannot map it, or it mapped other memory.
    """
    arena = GpuArena.of(0, device, memory)
    place = arena.tensor()[:_PATTERN_BYTES]
    if place.numel() == 0:
        raise UsageError("memory has no bytes; a probe writes some")
    before = place.clone()
    try:
        return _probe(call, arena, place)
    finally:
        place.copy_(before)


def _probe(call: Callable[[str, Mapping[str, Any]], dict[str, Any]], arena: GpuArena, place: torch.Tensor) -> GpuProbe:
    import torch

    pattern = secrets.token_bytes(place.numel())
    place.copy_(torch.frombuffer(bytearray(pattern), dtype=torch.uint8))
    arena.wait_written()
    exported = arena.registration()
    answer = call("ipc.probe", {name: exported[name] for name in _EXPORTED} | {"bytes": len(pattern)})
    device = exported["device"]
    if answer["read"] != pattern.hex():
        raise local_error(
            ImportRefused,
            f"the worker of {device} read {answer['read']} where this process wrote {pattern.hex()}: other memory",
            _OTHER_MEMORY_HINT,
        )
    seen, written = bytes(place.tolist()), bytes(byte ^ 0xFF for byte in pattern)
    if seen != written:
        raise local_error(
            ImportRefused,
            f"the worker of {device} wrote {written.hex()} where this process reads {seen.hex()}: other memory",
            _OTHER_MEMORY_HINT,
        )
    return GpuProbe(device, answer["mapped_bytes"], answer["open_s"], answer["copy_s"], answer["close_s"])
