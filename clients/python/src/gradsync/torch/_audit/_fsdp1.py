"""FullyShardedDataParallel (FSDP1): each rank of a sharding group holds an equal slice of flat parameters."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from gradsync.errors import UsageError

from .._placed import Sharded

__all__ = ["flat_slices"]

_MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"


def flat_slices(
    named: Mapping[str, nn.Parameter], roots: list[nn.Module], world_size: int
) -> tuple[dict[str, int], list[Sharded]] | None:
    """A mesh, and the parameters that are sliced along it; None without flat parameters.

    Raises:
        UsageError: the sharding groups are not rows of consecutive ranks.
    """
    flat = {id(parameter): name for name, parameter in named.items() if getattr(parameter, "_is_flat_param", False)}
    if not flat or _MODULE not in sys.modules:
        return None
    wrapper: Any = sys.modules[_MODULE].FullyShardedDataParallel
    slices: dict[int, list[str]] = {}
    for module in (one for root in roots for one in wrapper.fsdp_modules(root)):
        handle = module._handle
        name = None if handle is None else flat.get(id(handle.flat_param))
        if name is not None and handle.uses_sharded_strategy:
            slices.setdefault(_row_length(module.process_group), []).append(name)
    if len(slices) > 1:
        raise UsageError(f"FSDP shards over groups of {sorted(slices)} ranks; one size of group can be audited")
    if not slices:
        return None
    length, names = next(iter(slices.items()))
    axes = {"dp_replicate": world_size // length, "dp_shard": length}
    return axes, [Sharded(name, 0, "dp_shard") for name in names]


def _row_length(group: Any) -> int:
    ranks = dist.get_process_group_ranks(group)
    first = dist.get_rank() // len(ranks) * len(ranks)
    if ranks != list(range(first, first + len(ranks))):
        raise UsageError(f"FSDP shards over ranks {ranks}; only groups of neighbours can be audited")
    return len(ranks)
