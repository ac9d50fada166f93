"""Worked cases with known numbers."""

from __future__ import annotations

import numpy as np

from .world import Logical, World, only, replicate, shard

# Eight ranks, PP 4 × EP 2. Stage 0: 8×8 ones on both; stage 1: 8×16 ones, half on each; stages 2 and 3 hold nothing.
# 64 + 64 + 64 = 192 ones: counting the replicated tensor twice would give √256, forgetting the second half √128.
PIPELINE_AND_EXPERTS = World(
    meshes={"dense": {"pp": 4, "ep": 2}},
    tensors=(
        Logical("stage0.weight", (8, 8), (only(0, "pp"), replicate("ep"))),
        Logical("stage1.experts", (8, 16), (only(1, "pp"), shard(1, "ep"))),
    ),
    values=(np.ones((8, 8)), np.ones((8, 16))),
    max_norm={"all": 1.0},
)

# Two tensor-parallel ranks: a layer norm on both, a weight cut in two. A filter that keeps the layer norm of rank 0
# alone is right for the norm and wrong for the clip: rank 1 would keep its copy unclipped, and the two drift apart.
LAYER_NORM = World(
    meshes={"dense": {"tp": 2}},
    tensors=(
        Logical("layer_norm.weight", (4,), (replicate("tp"),)),
        Logical("linear.weight", (4, 4), (shard(0, "tp"),)),
    ),
    values=(np.full(4, 3.0), np.full((4, 4), 2.0)),
    max_norm={"all": 1.0},
)

# All conventional axes at once, sizes 2 and 3: a dense weight, a norm, an expert by itself, experts in one tensor.
EVERY_AXIS = World(
    meshes={
        "dense": {"pp": 2, "dp_replicate": 2, "dp_shard": 3, "tp": 2},
        "expert": {"pp": 2, "dp_replicate": 2, "ep": 3, "ep_tp": 2},
    },
    tensors=(
        Logical(
            "wq",
            (7, 4),
            (only(0, "pp"), replicate("dp_replicate"), shard(0, "dp_shard"), shard(0, "tp")),
            split_order=("tp", "dp_shard"),
        ),
        Logical("norm", (5,), (only(1, "pp"), replicate("dp_replicate"), shard(0, "dp_shard"), replicate("tp"))),
        Logical(
            "experts",
            (6, 4),
            (only(1, "pp"), replicate("dp_replicate"), shard(0, "ep"), shard(1, "ep_tp")),
            mesh="expert",
            clip_group="experts",
        ),
        Logical(
            "expert2",
            (3,),
            (only(0, "pp"), replicate("dp_replicate"), only(2, "ep"), replicate("ep_tp")),
            mesh="expert",
            clip_group="experts",
        ),
    ),
    values=(np.full((7, 4), 2.0), np.full(5, 3.0), np.full((6, 4), 1.0), np.full(3, 10.0)),
    max_norm={"all": 1.0, "experts": None},
)

# Every stage numbers its own layers from 0: one name for different tensors, told apart by where they are.
STAGES_BY_ONE_NAME = World(
    meshes={"dense": {"pp": 2, "dp_shard": 2}},
    tensors=(
        Logical("layers.0.weight", (4, 3), (only(0, "pp"), shard(0, "dp_shard")), layer="layers.0"),
        Logical("layers.0.weight", (5,), (only(1, "pp"), shard(0, "dp_shard")), layer="layers.0", dtype="bfloat16"),
    ),
    values=(np.full((4, 3), 2.0), np.full(5, 4.0)),
    max_norm={"all": 1.0},
)
