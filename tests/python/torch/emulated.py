"""Clips with `defer=True` on the kernels' emulation."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from drop_ins import init
from fake_daemon import FakeDaemon
from torch import nn

import gradsync.torch as gst


class Stream:
    """The one stream of the emulation, which is a thread while a gate is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wait(self, holding_the_interpreter: bool = False) -> None:
        """As torch.cuda.synchronize(), or as an extension that forgets to let other threads of Python run."""
        library = ctypes.PyDLL(str(self.path)) if holding_the_interpreter else ctypes.CDLL(str(self.path))
        assert library.gradsync_emulation_wait() == 0


def begin(daemon: FakeDaemon, model: nn.Module, **options: Any) -> Any:
    return init(daemon, model, **({"defer": True, "weights_every": 0} | options))


# Memory of a GPU is freed in the order of its stream, that of the emulation at once: a norm that a test drops would be
# written by the stream when its memory belongs to somebody else.
_kept: list[torch.Tensor] = []


def clip(model: nn.Module, max_norm: float = 0.5, **options: Any) -> torch.Tensor:
    norm = gst.clip_grad_norm_(model.parameters(), max_norm, **options)
    _kept.append(norm)
    return norm


def same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(ours, theirs, strict=True))
