"""What a step must report of the copies that ranks really hold: worked out from their values, copy by copy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cut import local_offset, local_shape
from .exact import norm
from .expected import norm_set
from .world import World, held, holders

Part = np.ndarray[Any, Any] | None
Copies = dict[int, Part]  # by rank, of one box


@dataclass(frozen=True, slots=True)
class Findings:
    """`inputs` are counts of values that are not finite, by rank."""

    norm: float
    groups: Mapping[str, float]
    layers: Mapping[str, float]
    counted_elements: int
    absent: frozenset[str]
    missing: Mapping[str, list[int]]
    divergence: Mapping[str, list[int]]
    nonfinite: Mapping[str, int]
    inputs: Mapping[str, dict[int, int]]


def findings(world: World, parts: Sequence[Sequence[Part]]) -> Findings:
    """`parts[rank]` are its local values, in its own order."""
    counted = set(norm_set(world))
    absent: set[str] = set()
    missing: dict[str, list[int]] = {}
    divergence: dict[str, list[int]] = {}
    inputs: dict[str, dict[int, int]] = {}
    nonfinite: dict[str, int] = {}
    sums: list[tuple[int, np.ndarray[Any, Any]]] = []
    for i, tensor in enumerate(world.tensors):
        boxes = copies_by_box(world, i, parts)
        ranks = sorted((rank, part) for copies in boxes.values() for rank, part in copies.items())
        without = sorted(rank for rank, part in ranks if part is None)
        if ranks and len(without) == len(ranks) and not has_copy_with_gradient(world, i, counted, parts):
            absent.add(tensor.name)
        elif without:
            missing[tensor.name] = without
        others = copies_by_box(world, twin, parts) if (twin := counted_for(world, i, counted)) is not None else {}
        if different := sorted(
            rank for box, copies in boxes.items() for rank in differing(copies, first_bits(others.get(box, copies)))
        ):
            divergence[tensor.name] = different
        if bad := {rank: n for rank, part in ranks if part is not None and (n := bad_values(part))}:
            inputs[tensor.name] = bad
            nonfinite[tensor.name] = sum(max(bad.get(rank, 0) for rank in copies) for copies in boxes.values())
        for copies in boxes.values():
            present = [part for _, part in sorted(copies.items()) if part is not None]
            if present and i in counted:
                sums.append((i, present[0]))
            sums += [(i, part[~np.isfinite(part)]) for part in present]  # counts wherever it is held

    def of(indices: Iterable[int]) -> float:
        chosen = set(indices)
        return norm([values for i, values in sums if i in chosen], world.norm_type)

    every = range(len(world.tensors))
    return Findings(
        norm=of(every),
        groups={name: of(i for i in every if world.tensors[i].clip_group == name) for name in world.groups},
        layers={name: of(i for i in every if world.tensors[i].layer == name) for name in world.layers},
        counted_elements=counted_elements(world, counted, parts),
        absent=frozenset(absent),
        missing=missing,
        divergence=divergence,
        nonfinite=nonfinite,
        inputs=inputs,
    )


def counted_for(world: World, index: int, counted: set[int]) -> int | None:
    """The tensor that is counted for a tied copy."""
    tied = world.tensors[index].tied
    if tied is None or index in counted:
        return None
    return next(i for i in counted if world.tensors[i].tied == tied)


def has_copy_with_gradient(world: World, index: int, counted: set[int], parts: Sequence[Sequence[Part]]) -> bool:
    """Whether a tied copy has a gradient that this tensor is counted for."""
    return any(
        part is not None
        for i in range(len(world.tensors))
        if counted_for(world, i, counted) == index
        for copies in copies_by_box(world, i, parts).values()
        for part in copies.values()
    )


def copies_by_box(world: World, index: int, parts: Sequence[Sequence[Part]]) -> dict[object, Copies]:
    """By shape and offset; boxes without elements are left out."""
    tensor = world.tensors[index]
    boxes: dict[object, Copies] = {}
    for rank in holders(world, tensor):
        shape = local_shape(world, tensor, rank)
        if math.prod(shape):
            part = parts[rank][held(world, rank).index(index)]
            boxes.setdefault((shape, local_offset(world, tensor, rank)), {})[rank] = part
    return boxes


def first_bits(copies: Copies) -> bytes | None:
    """Those of the lowest rank that has a gradient."""
    return next((part.tobytes() for _, part in sorted(copies.items()) if part is not None), None)


def differing(copies: Copies, wanted: bytes | None) -> list[int]:
    """The ranks whose bits are not the wanted ones; None: that there is a gradient is wrong."""
    return [rank for rank, part in sorted(copies.items()) if part is not None and part.tobytes() != wanted]


def bad_values(part: np.ndarray[Any, Any]) -> int:
    return int(np.count_nonzero(~np.isfinite(part)))


def counted_elements(world: World, counted: set[int], parts: Sequence[Sequence[Part]]) -> int:
    return sum(
        next((part.size for part in copies.values() if part is not None), 0)
        for i in counted
        for copies in copies_by_box(world, i, parts).values()
    )
