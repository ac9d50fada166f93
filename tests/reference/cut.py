"""Cuts a logical gradient into what each rank holds, by torch.chunk on the indices of every dim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .world import Logical, Rule, World, flat_index, flat_size


def splits(tensor: Logical, mesh: Mapping[str, int]) -> list[Rule]:
    """The splitting rules, outermost first: `split_order`, else the mesh's order of their first axes."""
    order = list(tensor.split_order if tensor.split_order is not None else mesh)
    return sorted((rule for rule in tensor.rules if rule.kind == "shard"), key=lambda rule: order.index(rule.axes[0]))


def local_indices(world: World, tensor: Logical, rank: int) -> list[torch.Tensor]:
    """Per dim, the logical indices that the rank holds."""
    mesh = world.meshes[tensor.mesh]
    indices = [torch.arange(extent) for extent in tensor.shape]
    for rule in splits(tensor, mesh):
        chunks = torch.chunk(indices[rule.dim], flat_size(mesh, rule.axes))
        mine = flat_index(mesh, rule.axes, rank)
        indices[rule.dim] = chunks[mine] if mine < len(chunks) else indices[rule.dim][:0]
    return indices


def local_shape(world: World, tensor: Logical, rank: int) -> tuple[int, ...]:
    return tuple(len(index) for index in local_indices(world, tensor, rank))


def local_offset(world: World, tensor: Logical, rank: int) -> tuple[int, ...]:
    """Where the box begins; of an empty extent 0."""
    return tuple(int(index[0]) if len(index) else 0 for index in local_indices(world, tensor, rank))


def local_part(world: World, tensor: Logical, rank: int, whole: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    indices = local_indices(world, tensor, rank)
    return whole[np.ix_(*(index.numpy() for index in indices))] if indices else whole


def whole_elements(world: World, tensor: Logical, rank: int) -> frozenset[int]:
    """The flat logical indices of what the rank holds: brute force, for tiling."""
    numbers = np.arange(tensor.numel).reshape(tensor.shape)
    return frozenset(int(i) for i in local_part(world, tensor, rank, numbers).reshape(-1))
