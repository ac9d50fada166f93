"""The statistics tables of all ranks, with what a test plants in single copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .cut import local_part
from .rows import Row, row_of
from .world import World, held

Spoil = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any] | None]


def local_values(
    world: World, rank: int, spoilt: Mapping[tuple[int, int], Spoil] | None = None
) -> list[np.ndarray[Any, Any] | None]:
    """In the rank's order; `spoilt[(rank, tensor)]` changes that copy alone."""
    parts: list[np.ndarray[Any, Any] | None] = []
    for i in held(world, rank):
        whole = world.values[i]
        part = None if whole is None else local_part(world, world.tensors[i], rank, whole)
        change = (spoilt or {}).get((rank, i))
        parts.append(part if part is None or change is None else change(part.copy()))
    return parts


def tables(
    world: World,
    stamp: int = 1,
    spoilt: Mapping[tuple[int, int], Spoil] | None = None,
    *,
    fingerprint: bool = False,
) -> list[list[Row]]:
    """By rank, one row per tensor of its own declaration."""
    return [
        [row_of(part, world.norm_type, stamp, fingerprint=fingerprint) for part in local_values(world, rank, spoilt)]
        for rank in range(world.world_size)
    ]
