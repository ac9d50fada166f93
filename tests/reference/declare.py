"""What each rank of a world declares: plain values that tests may spoil, and their form in the client's API."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gradsync

from .cut import local_offset, local_shape
from .world import Logical, Rule, World, held

__all__ = ["Declared", "declarations", "replace", "to_api"]


@dataclass(frozen=True, slots=True)
class Declared:
    """One tensor as one rank declares it. `source` is its index in `World.tensors`, unknown to the product."""

    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    local_offset: tuple[int, ...] | None
    dtype: str
    mesh: str
    rules: tuple[Rule, ...]
    split_order: tuple[str, ...] | None = None
    divisor: float | None = None
    tied: str | None = None
    clip_group: str = "all"
    layer: str | None = None
    source: int = -1


def declared(world: World, index: int, rank: int) -> Declared:
    tensor: Logical = world.tensors[index]
    return Declared(
        name=tensor.name,
        shape=tensor.shape,
        local_shape=local_shape(world, tensor, rank),
        local_offset=local_offset(world, tensor, rank) if tensor.offsets else None,
        dtype=tensor.dtype,
        mesh=tensor.mesh,
        rules=tensor.rules,
        split_order=tensor.split_order,
        divisor=tensor.divisor,
        tied=tensor.tied,
        clip_group=tensor.clip_group,
        layer=tensor.layer,
        source=index,
    )


def declarations(world: World) -> list[list[Declared]]:
    """By rank."""
    return [[declared(world, i, rank) for i in held(world, rank)] for rank in range(world.world_size)]


def _placement(rule: Rule) -> Any:
    if rule.kind == "replicate":
        return gradsync.Replicate()
    if rule.kind == "shard":
        return gradsync.Shard(rule.dim)
    if rule.kind == "only":
        return gradsync.Only(*rule.at)
    return gradsync.Partial(rule.op) >> (gradsync.Replicate() if rule.to is None else gradsync.Shard(rule.to))


def to_api(tensor: Declared) -> gradsync.Tensor:
    placements: dict[Any, Any] = {}
    for rule in tensor.rules:
        plain = len(rule.axes) == 1 and rule.axes[0] not in placements  # an axis placed twice is a mistake to test
        placements[rule.axes[0] if plain else rule.axes] = _placement(rule)
    return gradsync.Tensor(
        tensor.name,
        tensor.shape,
        local_shape=tensor.local_shape,
        local_offset=tensor.local_offset,
        dtype=tensor.dtype,
        mesh=tensor.mesh,
        placements=placements,
        divisor=tensor.divisor,
        tied=tensor.tied,
        clip_group=tensor.clip_group,
        layer=tensor.layer,
        split_order=tensor.split_order,
    )
