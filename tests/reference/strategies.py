"""Random worlds for Hypothesis: two meshes over the same ranks, every placement, every kind of gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .cut import whole_elements
from .expected import merged_order
from .world import Logical, Rule, World, flat_size, held, only, replicate, rounded, shard

MAX_RANKS = 24
DENSE = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
EXPERT = ("pp", "dp_replicate", "ep_shard", "ep", "tp")
NORM_TYPES = (2.0, 1.0, 3.0, math.inf, 2.5)
DTYPES = ("float32", "bfloat16", "float16", "float64")


@st.composite
def meshes(draw: st.DrawFn) -> dict[str, dict[str, int]]:
    """`dense`, and often `expert`: the same ranks, another factorisation, the axes of each in any order."""
    sizes: dict[str, int] = {}
    for axis in draw(st.permutations(DENSE)):
        room = MAX_RANKS // math.prod(sizes.values())
        sizes[axis] = draw(st.integers(1, min(3, room)))
    dense = {axis: sizes[axis] for axis in draw(axis_orders(DENSE))}
    found = {"dense": dense}
    if draw(st.booleans()):
        inner = math.prod(dense.values()) // dense["pp"]
        ep = draw(st.sampled_from([n for n in (1, 2, 3, 4) if inner % n == 0]))
        tp = draw(st.sampled_from([n for n in (1, dense["tp"]) if inner // ep % n == 0]))
        outer = draw(st.sampled_from([n for n in (1, dense["dp_replicate"]) if inner // ep // tp % n == 0]))
        sizes = {"pp": dense["pp"], "dp_replicate": outer, "ep_shard": inner // ep // tp // outer, "ep": ep, "tp": tp}
        found["expert"] = {axis: sizes[axis] for axis in draw(axis_orders(EXPERT))}
    return found


def axis_orders(axes: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """The usual one three times in four."""
    return st.integers(0, 3).flatmap(lambda n: st.permutations(axes).map(tuple) if n == 0 else st.just(axes))


@st.composite
def axis_groups(draw: st.DrawFn, mesh: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Every axis of size > 1 once, now and then two as one flattened axis."""
    axes = [axis for axis, size in mesh.items() if size > 1]
    if len(axes) >= 2 and draw(st.integers(0, 3)) == 0:
        k = draw(st.integers(0, len(axes) - 2))
        return [(a,) for a in axes[:k]] + [(axes[k], axes[k + 1])] + [(a,) for a in axes[k + 2 :]]
    return [(axis,) for axis in axes]


@st.composite
def rules(draw: st.DrawFn, mesh: Mapping[str, int], dims: int) -> tuple[Rule, ...]:
    chosen = []
    for axes in draw(axis_groups(mesh)):
        size = flat_size(mesh, axes)
        kinds = ["replicate", "only"] + (["shard", "shard"] if dims else [])
        kind = draw(st.sampled_from(kinds))
        if kind == "replicate":
            chosen.append(replicate(*axes))
        elif kind == "shard":
            chosen.append(shard(draw(st.integers(0, dims - 1)), *axes))
        else:
            chosen.append(only(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=2, unique=True)), *axes))
    return tuple(chosen)


@st.composite
def split_orders(draw: st.DrawFn, placed: tuple[Rule, ...]) -> tuple[str, ...] | None:
    splits = [rule.axes for rule in placed if rule.kind == "shard"]
    if len(splits) < 2 or draw(st.booleans()):
        return None
    return tuple(axis for axes in draw(st.permutations(splits)) for axis in axes)


@st.composite
def tensors(draw: st.DrawFn, name: str, shapes_mesh: Mapping[str, Mapping[str, int]]) -> Logical:
    mesh = draw(st.sampled_from(sorted(shapes_mesh)))
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    placed = draw(rules(shapes_mesh[mesh], len(shape)))
    return Logical(
        name,
        shape,
        placed,
        mesh=mesh,
        dtype=draw(st.sampled_from(DTYPES)),
        split_order=draw(split_orders(placed)),
        clip_group=draw(st.sampled_from(("all", "all", "experts"))),
        layer=draw(st.sampled_from((None, "layers.0", "layers.1"))),
        offsets=draw(st.booleans()),
    )


@st.composite
def values(draw: st.DrawFn, tensor: Logical) -> np.ndarray[Any, Any] | None:
    """Random, by seed (arrays of floats drawn one by one are slow); sometimes huge, tiny, zero or missing."""
    kind = draw(st.sampled_from(("normal", "normal", "normal", "huge", "tiny", "zero", "missing")))
    if kind == "missing":
        return None
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    plain = generator.standard_normal(tensor.shape)
    wide, half = tensor.dtype == "float64", tensor.dtype == "float16"
    huge = 1e160 if wide else 1e4 if half else 1e25
    tiny = 1e-170 if wide else 1e-4 if half else 1e-30
    return rounded(plain * {"normal": 1.0, "huge": huge, "tiny": tiny, "zero": 0.0}[kind], tensor.dtype)


@st.composite
def worlds(draw: st.DrawFn, max_tensors: int = 5, min_tensors: int = 0) -> World:
    found = draw(meshes())
    made = [draw(tensors(f"t{i}", found)) for i in range(draw(st.integers(min_tensors, max_tensors)))]
    data = [draw(values(tensor)) for tensor in made]
    if made and draw(st.integers(0, 3)) == 0:
        made, data = tie(draw, found, made, data)
    world_size = math.prod(found["dense"].values())
    orders = {
        rank: draw(st.permutations(range(len(made)))) for rank in range(world_size) if draw(st.integers(0, 5)) == 0
    }
    world = World(
        meshes=found,
        tensors=tuple(made),
        values=tuple(data),
        norm_type=draw(st.sampled_from(NORM_TYPES)),
        max_norm={
            group: draw(st.sampled_from((None, 1e-3, 1.0, 50.0)))
            for group in sorted({tensor.clip_group for tensor in made})
        },
        mode=draw(st.sampled_from(("strict", "torch"))),
        orders=orders,
    )
    assert len(merged_order(world)) == len(made)
    return world


def tie(
    draw: st.DrawFn,
    found: Mapping[str, Mapping[str, int]],
    made: list[Logical],
    data: list[np.ndarray[Any, Any] | None],
) -> tuple[list[Logical], list[np.ndarray[Any, Any] | None]]:
    """A second name for the last tensor, placed in another way: an embedding and the head that shares its weight."""
    from dataclasses import replace

    first = replace(made[-1], tied="embedding")
    placed = draw(rules(found[first.mesh], len(first.shape)))
    copy = replace(first, name="head", rules=placed, split_order=None)
    return [*made[:-1], first, copy], [*data, data[-1]]


def pick(draw: st.DrawFn, world: World) -> tuple[int, int]:
    """A rank and one of its tensors, with a gradient and at least one element there."""
    found = [
        (rank, i)
        for rank in range(world.world_size)
        for i in held(world, rank)
        if world.values[i] is not None and whole_elements(world, world.tensors[i], rank)
    ]
    assume(found)
    return draw(st.sampled_from(found))
