"""A fault to plant: one replacement of text, of the kind that a wrong idea of parallel training makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Layer", "Mutant"]

Layer = Literal[
    "plan",
    "norm",
    "sync",
    "client",
    "adapter",
    "restart",
    "policy",
    "epoch",
    "gpu",
    "gpu_nodes",
    "import",
    "nodes",
    "travel",
    "transfer",
    "defer",
    "wire",
    "recorder",
    "links",
    "nccl",
    "collective",
    "communicators",
    "sites",
]


@dataclass(frozen=True)
class Mutant:
    """`old` occurs once in `path`."""

    id: str
    fault: str
    layer: Layer
    path: str
    old: str
    new: str
