"""Drives a daemon as all ranks of a world before sync, through the raw API, and keeps what every rank then holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from product import Product, told
from reference.declare import declarations, to_api
from reference.sync import Parts
from reference.sync_world import Array, SyncWorld, inputs
from reference.world import held

import gradsync

WAIT_S = 20.0  # shorter than the harness waits for its threads: a rank that waits in vain says for whom
GARBAGE = 77.0  # in inputs that are unused and in outputs that are not written yet


@dataclass(frozen=True, slots=True)
class Ranks:
    """What `Product.each` attaches to, of a world whose meshes have an order of their own."""

    world_size: int
    meshes: Mapping[str, gradsync.Mesh]

    @staticmethod
    def of(sync: SyncWorld) -> Ranks:
        meshes = {
            name: gradsync.Mesh(axes, sync_order=sync.sync_order.get(name)) for name, axes in sync.world.meshes.items()
        }
        return Ranks(sync.world.world_size, meshes)


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's report of each call, and its outputs: bits by tensor, values in float64."""

    measured: gradsync.StepReport
    clipped: gradsync.StepReport
    once: gradsync.StepReport
    synced: list[Array]
    after_clip: list[Array]
    bits: list[bytes]
    bits_again: list[bytes]
    explained: dict[str, Any]


def declare(sync: SyncWorld, job: gradsync.Job, tensors: list[Any], accumulate: int = 1) -> gradsync.Grads:
    world = sync.world
    return job.declare(
        [to_api(tensor) for tensor in tensors],
        accumulate=accumulate,
        norm_type=world.norm_type,
        formula=world.mode,
        clip={group: gradsync.Clip(max_norm=most) for group, most in world.max_norm.items()},
        timeout=WAIT_S,
    )


def steps(product: Product, sync: SyncWorld, accumulate: int = 1) -> list[Rank]:
    """Two steps with equal inputs, by rank: one in halves and one in a single call."""
    tensors, given = declarations(sync.world), inputs(sync)

    def body(job: gradsync.Job) -> Rank:
        grads = declare(sync, job, tensors[job.rank], accumulate)
        explained = grads.explain() if job.rank == 0 else {}
        backward(grads, given[job.rank], accumulate, seed=job.rank)
        measured, synced = grads.compute_norm(timeout=WAIT_S), values(grads)
        clipped, after_clip, bits = grads.apply_clip(timeout=WAIT_S), values(grads), stored(grads)
        backward(grads, given[job.rank], accumulate, seed=job.rank + 100)
        once, bits_again = grads.finish(timeout=WAIT_S), stored(grads)
        return Rank(measured, clipped, once, synced, after_clip, bits, bits_again, explained)

    by_rank: list[Rank] = product.each(Ranks.of(sync), body)  # type: ignore[arg-type]
    names = [{tensor.name for tensor in tensors[rank]} for rank in range(len(by_rank))]
    for call in ("measured", "clipped", "once"):
        reports = [getattr(rank, call) for rank in by_rank]
        absent = set().union(*(report.absent for report in reports))
        for report, declared in zip(reports, names, strict=True):  # each is told of what it declared
            assert set(report.absent) == absent & declared, call
            assert told(replace(report, absent=())) == told(replace(reports[0], absent=())), call
        by_rank[0] = replace(by_rank[0], **{call: replace(reports[0], absent=tuple(sorted(absent)))})
    return by_rank


def backward(grads: gradsync.Grads, given: list[Array | None], accumulate: int, seed: int) -> None:
    """Fills the inputs in an order of this rank's own; what is unused keeps garbage, which nobody may read."""
    for tensor in grads.tensors:
        grads.output(tensor.name).torch().fill_(GARBAGE)
    for index in np.random.default_rng(seed).permutation(len(given)):
        tensor, values = grads.tensors[index], given[index]
        view = grads.input(tensor.name).torch()
        view.fill_(GARBAGE)
        if values is None:
            grads.mark_unused(tensor.name)
            continue
        for micro_batch in range(accumulate):
            part = torch.as_tensor(values) if micro_batch == 0 else torch.zeros(tensor.held_shape)
            view.copy_(part.reshape(view.shape)) if micro_batch == 0 else view.add_(part.to(view.dtype))
            grads.ready(tensor.name, micro_batch)


def values(grads: gradsync.Grads) -> list[Array]:
    """The outputs in float64, in the rank's order."""
    return [grads.output(tensor.name).torch().double().numpy().copy() for tensor in grads.tensors]


def stored(grads: gradsync.Grads) -> list[bytes]:
    return [grads.output(tensor.name).memoryview().tobytes() for tensor in grads.tensors]


def by_tensor(sync: SyncWorld, ranks: list[list[Any]]) -> dict[tuple[int, int], Any]:
    """(tensor, rank) → what the rank has for it."""
    world = sync.world
    return {(i, rank): ranks[rank][row] for rank in range(world.world_size) for row, i in enumerate(held(world, rank))}


def parts(ranks: list[list[Array]]) -> Parts:
    return [list(rank) for rank in ranks]
