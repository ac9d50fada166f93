"""What goes wrong in one copy alone: it is named, and it is not lost because another copy is the one that counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference.cut import whole_elements
from reference.declare import declarations
from reference.expected import answer
from reference.program import merge, run
from reference.strategies import pick, worlds
from reference.tables import tables
from reference.world import World, holders

Array = np.ndarray[Any, Any]


def others(world: World, rank: int, index: int) -> list[int]:
    """The other holders of the same elements."""
    tensor = world.tensors[index]
    mine = whole_elements(world, tensor, rank)
    return [r for r in holders(world, tensor) if r != rank and whole_elements(world, tensor, r) == mine]


@given(st.data())
def test_a_copy_that_differs_is_named(data: st.DataObject) -> None:
    world = data.draw(worlds())
    rank, index = data.draw(st.composite(pick)(world))

    def bend(values: Array) -> Array:
        values.reshape(-1)[0] = values.reshape(-1)[0] * 3 + 1
        return values

    # Fingerprints: of p = inf a row has the maximum alone, of other p no signs and no order.
    rows = tables(world, spoilt={(rank, index): bend}, fingerprint=True)
    outcome = run(world, merge(world, declarations(world)), rows)
    copies = others(world, rank, index)
    name = world.tensors[index].name
    if copies:
        assert outcome.divergence == {name: [rank] if rank > min(copies) else sorted(copies)}
    else:
        assert outcome.divergence == {}


@given(st.data())
def test_a_nan_in_one_copy_reaches_the_findings(data: st.DataObject) -> None:
    world = data.draw(worlds())
    rank, index = data.draw(st.composite(pick)(world))

    def poison(values: Array) -> Array:
        values.reshape(-1)[-1] = math.nan
        return values

    outcome = run(world, merge(world, declarations(world)), tables(world, spoilt={(rank, index): poison}))
    assert outcome.nonfinite == {**answer(world).nonfinite, world.tensors[index].name: 1}
    assert all(math.isnan(result[""]) for result in outcome.by_rank)


@given(st.data())
def test_a_gradient_missing_in_one_copy_is_named(data: st.DataObject) -> None:
    world = data.draw(worlds())
    rank, index = data.draw(st.composite(pick)(world))
    outcome = run(world, merge(world, declarations(world)), tables(world, spoilt={(rank, index): lambda _: None}))
    tensor = world.tensors[index]
    named = outcome.divergence.get(tensor.name, []) or outcome.missing.get(tensor.name, [])
    alone = not any(whole_elements(world, tensor, r) for r in holders(world, tensor) if r != rank)
    assert bool(named) == (not alone)
