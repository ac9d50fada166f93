"""Declarations that must be refused: each takes right ones and spoils them the way a trainer's mistake would.

`fields` are where the refusal may point: several, where a mistake shows in several places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .declare import Declared, declarations
from .world import Logical, Rule, World, only, replicate, shard

Ranks = list[list[Declared]]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    world: World
    spoil: Callable[[Ranks], Ranks]
    tensor: str
    fields: tuple[str, ...]

    def declarations(self) -> Ranks:
        return self.spoil(declarations(self.world))


DENSE = {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2}
EXPERT = {"pp": 2, "dp_replicate": 2, "ep": 2, "tp": 2}


def one(shape: tuple[int, ...], *rules: Rule, mesh: str = "dense", **more: object) -> World:
    return of(Logical("w", shape, rules, mesh=mesh, **more))  # type: ignore[arg-type]


def of(*tensors: Logical) -> World:
    ones = tuple(np.ones(tensor.shape) for tensor in tensors)
    return World(meshes={"dense": DENSE, "expert": EXPERT}, tensors=tensors, values=ones)


def each(change: Callable[[int, Declared], Declared | None]) -> Callable[[Ranks], Ranks]:
    """Changes every declaration of the tensor `w`; None leaves it out."""

    def spoil(ranks: Ranks) -> Ranks:
        changed = [[change(rank, t) if t.name == "w" else t for t in tensors] for rank, tensors in enumerate(ranks)]
        return [[t for t in tensors if t is not None] for tensors in changed]

    return spoil


def on(rank: int, **changes: object) -> Callable[[Ranks], Ranks]:
    return each(lambda r, t: replace(t, **changes) if r == rank else t)  # type: ignore[arg-type]


def everywhere(**changes: object) -> Callable[[Ranks], Ranks]:
    return each(lambda _, t: replace(t, **changes))  # type: ignore[arg-type]


def without(axis: str) -> Callable[[Ranks], Ranks]:
    return each(lambda _, t: replace(t, rules=tuple(rule for rule in t.rules if axis not in rule.axes)))


REST = (replicate("pp"), replicate("dp_replicate"), replicate("tp"))
SHARDED = one((4, 6), shard(0, "dp_shard"), *REST)
OFFSETS = one((4, 6), shard(0, "dp_shard"), *REST, offsets=True)
STAGE = one((4,), only(1, "pp"), replicate("dp_replicate"), replicate("dp_shard"), replicate("tp"))
EXPERTS = one((4, 3), replicate("pp"), replicate("dp_replicate"), shard(0, "ep"), replicate("tp"), mesh="expert")
SPLIT_BY_TP = (replicate("dp_shard"), replicate("pp"), replicate("dp_replicate"), shard(0, "tp"))
TWO = (shard(0, "dp_shard"), shard(0, "tp"), replicate("pp"), replicate("dp_replicate"))
# Most uneven splits have the same sizes in either order; 7 over 2 and 3 has not.
NESTED = World(
    meshes={"dense": {"dp_shard": 3, "tp": 2}},
    tensors=(Logical("w", (7,), (shard(0, "dp_shard"), shard(0, "tp")), split_order=("tp", "dp_shard")),),
    values=(np.ones(7),),
)
TIED = of(
    Logical("v", (4,), (replicate("pp"), replicate("dp_replicate"), replicate("dp_shard"), replicate("tp")), tied="e"),
    Logical("w", (4,), (replicate("pp"), replicate("dp_replicate"), replicate("dp_shard"), replicate("tp")), tied="e"),
)


def _ep_left_out(_: int, tensor: Declared) -> Declared:
    rules = tuple(replicate("ep") if rule.axes == ("ep",) else rule for rule in tensor.rules)
    return replace(tensor, rules=rules)


def _overlap_and_gap(rank: int, tensor: Declared) -> Declared:
    """dp_shard 1 holds rows 1 and 2 instead of 2 and 3: as many elements, but row 1 twice and row 3 never."""
    return replace(tensor, local_offset=(1, 0)) if tensor.local_offset == (2, 0) else tensor


def _other_name_for_stage(rank: int, tensor: Declared) -> Declared:
    rules = tuple(replicate("pp") if rule.axes == ("pp",) else rule for rule in tensor.rules)
    return replace(tensor, rules=rules)


FAULTS = (
    Fault("sharded but held whole", SHARDED, everywhere(local_shape=(4, 6)), "w", ("local_shape",)),
    Fault("sharded but held whole on one rank", SHARDED, on(2, local_shape=(4, 6)), "w", ("local_shape",)),
    Fault(
        "replicated but held in part",
        one((4, 6), shard(0, "dp_shard"), *REST),
        everywhere(rules=(replicate("dp_shard"), *REST)),
        "w",
        ("local_shape",),
    ),
    Fault("EP left out", EXPERTS, each(_ep_left_out), "w", ("local_shape",)),
    Fault("EP without a placement", EXPERTS, without("ep"), "w", ("placements",)),
    Fault("a missing axis", SHARDED, without("tp"), "w", ("placements",)),
    Fault("an unknown axis", SHARDED, everywhere(rules=(shard(0, "dp_shrad"), *REST)), "w", ("placements", "axes")),
    Fault(
        "an axis placed twice",
        SHARDED,
        everywhere(rules=(shard(0, "dp_shard"), replicate("dp_shard"), *REST)),
        "w",
        ("placements", "axes"),
    ),
    Fault("an unknown mesh", SHARDED, everywhere(mesh="desne"), "w", ("mesh",)),
    Fault("overlap and gap of equal size", OFFSETS, each(_overlap_and_gap), "w", ("local_offset",)),
    Fault("a shard beyond the shape", OFFSETS, on(2, local_offset=(3, 0)), "w", ("local_offset",)),
    Fault("replicas with different boxes", OFFSETS, on(0, local_offset=(2, 0)), "w", ("local_offset", "local_shape")),
    Fault(
        "a gap",
        OFFSETS,
        each(lambda _, t: replace(t, local_shape=(1, 6)) if t.local_offset == (2, 0) else t),
        "w",
        ("local_shape", "local_offset"),
    ),
    Fault("shapes differ", SHARDED, on(3, shape=(6, 6), local_shape=(3, 6)), "w", ("shape",)),
    Fault("dtypes differ", SHARDED, on(3, dtype="bfloat16"), "w", ("dtype",)),
    Fault("clip groups differ", SHARDED, on(3, clip_group="experts"), "w", ("clip_group",)),
    Fault("layers differ", SHARDED, on(3, layer="x"), "w", ("layer",)),
    Fault("tied on one rank only", SHARDED, on(3, tied="e"), "w", ("tied",)),
    Fault("placements differ", OFFSETS, on(3, rules=SPLIT_BY_TP), "w", ("placements",)),
    Fault(
        "a partial that nobody reduced",
        SHARDED,
        everywhere(rules=(shard(0, "dp_shard"), *REST[:2], Rule(("tp",), "partial"))),
        "w",
        ("placements",),
    ),
    Fault("a divisor that nobody applies", SHARDED, everywhere(divisor=2.0), "w", ("divisor",)),
    Fault(
        "one rank does not hold it",
        SHARDED,
        each(lambda r, t: None if r == 5 else t),
        "w",
        ("tensors", "placements", "name"),
    ),
    Fault(
        "two stages, one name, no `only`", STAGE, each(_other_name_for_stage), "w", ("tensors", "placements", "name")
    ),
    Fault(
        "the order of nested splits differs",
        one((5,), *TWO, split_order=("tp", "dp_shard")),
        on(0, split_order=("dp_shard", "tp")),
        "w",
        ("split_order",),
    ),
    Fault(
        "nested splits in the other order",
        NESTED,
        everywhere(split_order=None),
        "w",
        ("local_shape",),
    ),
    Fault("tied copies in two clip groups", TIED, everywhere(clip_group="head"), "w", ("clip_group", "tied")),
    Fault("tied copies of two shapes", TIED, everywhere(shape=(5,), local_shape=(5,)), "w", ("shape", "tied")),
    Fault("tied copies of two dtypes", TIED, everywhere(dtype="bfloat16"), "w", ("dtype", "tied")),
)
