"""Random worlds before their gradients are reduced: every placement on every axis, tied copies, unused gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from .expected import merged_order
from .strategies import DTYPES, NORM_TYPES, axis_groups, meshes
from .sync_world import Array, SyncWorld, groups, stages, summand_count
from .world import Logical, Rule, World, flat_size, holders, only, partial, replicate, rounded, shard

KINDS = ("replicate", "only", "shard", "partial", "partial", "scatter", "scatter")


@st.composite
def sync_rules(draw: st.DrawFn, mesh: Mapping[str, int], dims: int, *, single: bool = False) -> tuple[Rule, ...]:
    """`single`: tensors exist at one place of an `only` axis, as tied copies do."""
    chosen = []
    kinds = KINDS if dims else tuple(kind for kind in KINDS if kind not in ("shard", "scatter"))
    for axes in draw(axis_groups(mesh)):
        size = flat_size(mesh, axes)
        kind = draw(st.sampled_from(kinds))
        if kind == "replicate":
            chosen.append(replicate(*axes))
        elif kind == "only":
            most = 1 if single else 2
            chosen.append(only(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=most, unique=True)), *axes))
        elif kind == "shard":
            chosen.append(shard(draw(st.integers(0, dims - 1)), *axes))
        else:
            to = draw(st.integers(0, dims - 1)) if kind == "scatter" else None
            chosen.append(partial(draw(st.sampled_from(("sum", "mean"))), to, *axes))
    return tuple(chosen)


@st.composite
def sync_tensors(
    draw: st.DrawFn, name: str, shapes_mesh: Mapping[str, Mapping[str, int]], *, single: bool = False
) -> Logical:
    mesh = draw(st.sampled_from(sorted(shapes_mesh)))
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    placed = draw(sync_rules(shapes_mesh[mesh], len(shape), single=single))
    divided = not any(rule.op == "mean" for rule in placed) and draw(st.booleans())
    return Logical(
        name,
        shape,
        placed,
        mesh=mesh,
        dtype=draw(st.sampled_from(DTYPES)),
        clip_group=draw(st.sampled_from(("all", "all", "experts"))),
        layer=draw(st.sampled_from((None, "layers.0", "layers.1"))),
        offsets=draw(st.booleans()),
        divisor=draw(st.sampled_from((3.0, 8.0, 0.5))) if divided else None,
    )


@st.composite
def split_orders(draw: st.DrawFn, sync: SyncWorld, tensor: Logical) -> tuple[str, ...] | None:
    """None most of the time; else the shards in any order, then what the stages scatter in theirs."""
    shards = [rule.axes for rule in tensor.rules if rule.kind == "shard"]
    if len(shards) < 2 or draw(st.booleans()):
        return None
    scattered = [rule.axes for rule in stages(sync, tensor) if rule.to is not None]
    return tuple(axis for axes in [*draw(st.permutations(shards)), *scattered] for axis in axes)


@st.composite
def summands(draw: st.DrawFn, world: World, tensor: Logical) -> Array:
    kind = draw(st.sampled_from(("normal", "normal", "normal", "large", "tiny", "zero", "cancelling")))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = generator.standard_normal((summand_count(world, tensor), *tensor.shape))
    tiny = {"float64": 1e-170, "float16": 1e-4}.get(tensor.dtype, 1e-30)
    values *= {"large": 1e3, "tiny": tiny, "zero": 0.0}.get(kind, 1.0)
    if kind == "cancelling" and len(values) > 1:
        values[1:] = values[1:] * 1e-3 - values[0] / (len(values) - 1)
    return rounded(values, tensor.dtype)


@st.composite
def sync_orders(draw: st.DrawFn, found: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(draw(st.permutations(list(mesh)))) for name, mesh in found.items() if draw(st.integers(0, 2)) == 0
    }


@st.composite
def sync_worlds(draw: st.DrawFn, max_tensors: int = 5, *, unused: bool = True) -> SyncWorld:
    found = draw(meshes())
    tied = draw(st.integers(0, 3)) == 0
    count = draw(st.integers(1, max_tensors))
    made = [draw(sync_tensors(f"t{i}", found, single=tied and i == count - 1)) for i in range(count)]
    if tied:
        made = [*made[:-1], replace(made[-1], tied="embedding"), draw(twin(found, made[-1]))]
    draft = World(meshes=found, tensors=tuple(made), values=(None,) * len(made))
    sync = SyncWorld(draft, (), sync_order=draw(sync_orders(found)))
    made = [replace(tensor, split_order=draw(split_orders(sync, tensor))) for tensor in made]
    if tied:
        made[-1] = replace(made[-1], split_order=made[-2].split_order)
    orders = {rank: draw(st.permutations(range(len(made)))) for rank in range(draft.world_size) if draw(one_in(6))}
    groups_of = sorted({tensor.clip_group for tensor in made})
    world = replace(
        draft,
        tensors=tuple(made),
        norm_type=draw(st.sampled_from(NORM_TYPES)),
        max_norm={group: draw(st.sampled_from((None, 1e-3, 1.0, 50.0))) for group in groups_of},
        mode=draw(st.sampled_from(("strict", "torch"))),
        orders=orders,
    )
    assert len(merged_order(world)) == len(made)
    sync = replace(sync, world=world, summands=tuple(draw(summands(world, tensor)) for tensor in made))
    return replace(sync, unused=draw(unused_places(world))) if unused and draw(st.booleans()) else sync


def one_in(n: int) -> st.SearchStrategy[bool]:
    return st.integers(0, n - 1).map(lambda k: k == 0)


@st.composite
def twin(draw: st.DrawFn, found: Mapping[str, Mapping[str, int]], first: Logical) -> Logical:
    """A second name for a weight, perhaps in another stage: placed alike but for the place where it exists."""
    mesh = found[first.mesh]
    rules = tuple(
        only(draw(st.integers(0, flat_size(mesh, rule.axes) - 1)), *rule.axes) if rule.kind == "only" else rule
        for rule in first.rules
    )
    return replace(first, name="head", tied="embedding", rules=rules)


@st.composite
def unused_places(draw: st.DrawFn, world: World) -> frozenset[tuple[int, int]]:
    """Which ranks do not use a tensor: none, some, whole groups, or all, drawn for every tensor."""
    found: set[tuple[int, int]] = set()
    for i, tensor in enumerate(world.tensors):
        kind = draw(st.sampled_from(("none", "some", "groups", "all")))
        ranks = holders(world, tensor)
        if kind == "some":
            found |= {(rank, i) for rank in draw(st.sets(st.sampled_from(ranks)))}
        elif kind == "groups":
            without = draw(st.lists(st.sampled_from(groups(world, i)), max_size=2))
            found |= {place for group in without for place in group}
        elif kind == "all":
            found |= {(rank, i) for rank in ranks}
    return frozenset(found)
