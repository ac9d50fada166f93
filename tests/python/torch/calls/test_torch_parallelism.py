"""The worked numbers of docs/parallelism.md: a weight of 6 × 4 ones, and what each rank holds of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from reference.declare import declarations
from reference.program import merge, run
from reference.tables import local_values, tables
from reference.world import Logical, World, only, replicate, shard

ONES = numpy.ones((6, 4))
CASES = {
    "DDP": ({"dp": 4}, (replicate("dp"),), None, [24, 24, 24, 24]),
    "FSDP2": ({"dp_shard": 4}, (shard(0, "dp_shard"),), None, [8, 8, 8, 0]),
    "HSDP": ({"dp_replicate": 2, "dp_shard": 2}, (replicate("dp_replicate"), shard(0, "dp_shard")), None, [12] * 4),
    "TP row": ({"tp": 2}, (shard(1, "tp"),), None, [12, 12]),
    "FSDP2 TP": (
        {"dp_shard": 2, "tp": 2},
        (shard(0, "dp_shard"), shard(0, "tp")),
        ("tp", "dp_shard"),
        [8, 8, 4, 4],
    ),
    "CP folded": ({"dp_shard": 2, "cp": 2}, (shard(0, "dp_shard", "cp"),), None, [8, 8, 8, 0]),
    "PP": ({"pp": 2, "dp": 2}, (only(0, "pp"), replicate("dp")), None, [24, 24, 0, 0]),
    "EP": ({"ep": 2}, (shard(0, "ep"),), None, [12, 12]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_worked_number_of_the_table(case: str) -> None:
    axes, rules, order, held = CASES[case]
    tensor = Logical("w", (6, 4), rules, split_order=order)
    world = World(meshes={"dense": axes}, tensors=(tensor,), values=(ONES,))
    found = [sum(float((part**2).sum()) for part in local_values(world, rank)) for rank in range(world.world_size)]
    assert found == held
    outcome = run(world, merge(world, declarations(world)), tables(world))
    assert {result[""] for result in outcome.by_rank} == {24**0.5}
