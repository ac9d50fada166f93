"""Asks a daemon for the exact norms: declares and steps what the ranks wrote, as if they had spoken with it."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import gradsync
from gradsync._step._report import StepReport
from gradsync.errors import GradsyncError

from ._clip_sets import passed, stepped_by
from ._findings import RankFindings
from ._verdict import OurStep
from ._world import World

__all__ = ["Replay", "replay"]

_DECLARE_S = 60.0
_STEP_S = 60.0
_SAID = 5  # how many similar findings are printed


@dataclass(frozen=True)
class Replay:
    """One answer per step, what the reports say besides norms, and the error that ended the replay early, if any."""

    steps: Sequence[OurStep]
    findings: Sequence[str]
    replicas_differ: bool
    error: GradsyncError | None


def replay(world: World, steps: int, address: str | None) -> Replay:
    """Attaches every rank to a job that exists only for this audit, each in a thread of its own.

    Raises:
        ConnectionFailed: no daemon listens at this address.
    """
    clients = [gradsync.connect(address) for _ in world.ranks]
    job = f"audit-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    reports: dict[int, list[StepReport]] = {}
    errors: list[GradsyncError] = []

    def one_rank(client: gradsync.Client, found: RankFindings) -> None:
        try:
            reports[found.rank] = _one_rank(client, found, world, steps, job, errors)
        except GradsyncError as error:
            errors.append(error)
        finally:
            client.close()

    _all(one_rank, zip(clients, world.ranks.values(), strict=True))
    # A rank that fails makes the others fail too, so the first error is the cause.
    answered = max(reports.values(), key=len, default=[])
    found, differ = _findings(answered, world)
    ours = [OurStep(report.norm, {layer.name: layer.norm for layer in report.layers}) for report in answered]
    return Replay(ours, found, differ, errors[0] if errors else None)


def _one_rank(
    client: gradsync.Client, found: RankFindings, world: World, steps: int, job: str, errors: list[GradsyncError]
) -> list[StepReport]:
    used = {str(tensor.mesh) for other in world.ranks.values() for tensor in other.tensors}
    meshes = {name: axes for name, axes in found.meshes.items() if name in used} or dict(found.meshes)
    attached = client.attach(
        job=job, rank=found.rank, world_size=found.world_size, meshes=meshes, local_world_size=found.world_size
    )
    labels = [group.label for group in world.groups_of[found.rank]]
    tensors = [replace(tensor, layer=label) for tensor, label in zip(found.tensors, labels, strict=True)]
    grads = attached.declare(tensors, data_path="stats", norm_type=found.p, timeout=_DECLARE_S)
    done: list[StepReport] = []
    try:
        for place, step in enumerate(found.steps[:steps]):
            asked = _asked_for(world, found.rank, place)
            for number, (tensor, row) in enumerate(zip(tensors, step.rows, strict=True)):
                grads.write(tensor.name, row if number in asked else None)
            done.append(grads.finish(max_norm=None, timeout=_STEP_S))
    except GradsyncError as error:
        errors.append(error)
    return done


def _asked_for(world: World, rank: int, place: int) -> Collection[int]:
    """The tensors that the step's calls use, or that this rank steps and the calls of other ranks use; others may not
    be reduced yet, or belong to an earlier step."""
    step = world.ranks[rank].steps[place]
    if any(call.tensors is None for call in step.calls):
        return range(len(step.rows))
    own = {index for call in step.calls for index in call.tensors or ()}
    elsewhere = set().union(*(passed(world, other, place) for other in world.ranks if other != rank))
    steps = (stepped_by(world, rank) or set()) & elsewhere
    return own | {world.places[rank][key] for key in steps}


def _all(
    body: Callable[[gradsync.Client, RankFindings], None], arguments: zip[tuple[gradsync.Client, RankFindings]]
) -> None:
    threads = [threading.Thread(target=body, args=pair, name=f"audit-rank-{pair[1].rank}") for pair in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _findings(reports: Sequence[StepReport], world: World | None = None) -> tuple[list[str], bool]:
    differing: dict[tuple[str, str], int] = {}
    missing: dict[tuple[str, str], int] = {}
    for number, report in enumerate(reports):
        for divergence in report.divergence:
            differing.setdefault((divergence.tensor, _some(divergence.ranks)), number)
        for one in report.missing:
            ranks = [rank for rank in one.ranks if world is None or not _has(world, rank, number, one.tensor)]
            if ranks:
                missing.setdefault((one.tensor, _some(ranks)), number)
    said = [
        f"'{tensor}' should be equal on ranks that replicate it, and the gradients of ranks {ranks} differ (first in "
        f"step {step}): they were not reduced alike -> reduce the gradients of all copies before the clip"
        for (tensor, ranks), step in differing.items()
    ]
    absent = [
        f"'{tensor}' has no gradient on ranks {ranks}: counted as 0 -> right for experts without tokens; else see "
        "whether those ranks skip a part of the model"
        for tensor, ranks in missing
    ]
    return [*_first(said, "tensors that differ"), *_first(absent, "tensors without a gradient")], bool(differing)


def _has(world: World, rank: int, step: int, name: str) -> bool:
    """Whether this rank has the gradient, which its calls were not given."""
    held = zip(world.ranks[rank].tensors, world.ranks[rank].steps[step].rows, strict=True)
    return any(tensor.name == name and row is not None for tensor, row in held)


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + ("…" if len(ranks) > 8 else "")


def _first(said: list[str], what: str) -> list[str]:
    return said if len(said) <= _SAID else [*said[:_SAID], f"and {len(said) - _SAID} more {what}"]
