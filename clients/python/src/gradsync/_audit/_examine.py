"""Examines a folder that ranks wrote: checks that it is complete, asks the daemon, and returns the verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradsync._launch._nodes import node_name
from gradsync.errors import GradsyncError, RpcError, UsageError

from ._clip_sets import clip_sets
from ._findings import DONE, RankFindings, Step, read_ranks
from ._node import judge_node, node_of, nodes_of, with_nodes
from ._replay import Replay, replay
from ._verdict import Verdict, judge
from ._world import Key, World

__all__ = ["all_have_ended", "check_new", "complete", "examine", "has_ended", "steps_of"]

LINE = "gradsync.torch.audit(model, mesh={…}, pp=…, ep=…)"
_ADVICE = (
    f"where a script spreads tensors by hand (PP or EP over plain process groups), say how: one line in it, {LINE}, or "
    "--mesh, --pp, --ep and --sharded of gradsync audit; docs/parallelism.md has the placement of each parallelism"
)
_MEND = (
    "mend what it says, or what it says is not seen: gradsync.torch.observe(norm) after "
    "gradsync.torch.init(model, mesh=…, mode='observe') compares the norm of any script whose gradients are in p.grad"
)


def check_new(folder: Path) -> None:
    """Raises UsageError where ranks of an earlier run have written."""
    if any(next(folder.glob(name), None) is not None for name in ("rank-*.jsonl", "ended-*")):
        raise UsageError(f"--folder {folder}: it has the files of an earlier run; name a folder that is new or empty")


def complete(folder: Path, *, shared: bool = False) -> bool:
    """Whether every rank has written everything; `shared`, whether the ranks of all nodes write here."""
    for path in folder.glob("rank-*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(DONE)))
            if file.read() != DONE:
                return False
    ranks = read_ranks(folder)
    return bool(ranks) and len(ranks) == (_of_this_node(ranks, shared) or _world_size(ranks))


def has_ended(folder: Path) -> None:
    """Tells the commands of other nodes that the ranks of this one write no more."""
    (folder / f"ended-{node_name(os.environ)}-{os.getpid()}").touch()


def all_have_ended(folder: Path) -> bool:
    """Whether no rank of any node writes any more; False where the number of nodes is not known."""
    ranks = read_ranks(folder)
    here = max((found.local_world_size for found in ranks.values()), default=0)
    return here > 0 and len([*folder.glob("ended-*")]) * here >= _world_size(ranks)


def steps_of(folder: Path) -> int:
    """How many steps all ranks have written."""
    return min((len(found.steps) for found in read_ranks(folder).values()), default=0)


def examine(folder: Path, address: str | None, tolerance: float | None = None, *, shared: bool = False) -> Verdict:
    """The verdict on what the ranks wrote. If they or the daemon give too little, its `reason` says so."""
    ranks = read_ranks(folder)
    reason, advice = _lacks(ranks, shared)
    if reason is not None:
        return Verdict(ranks=_world_size(ranks), reason=reason, advice=advice)
    world = World(ranks)
    steps = min(len(found.steps) for found in ranks.values())
    early = [
        f"rank {found.rank} stopped early: {found.failed}; the steps before it are compared -> mend what it says, "
        "then audit again"
        for found in ranks.values()
        if found.failed
    ]
    if _of_this_node(ranks, shared):
        return judge_node(world, steps, tolerance, early)
    early += nodes_of(ranks)
    everything = world
    try:
        answer = replay(world, steps, address)
        called = _called(world)
        left_out = len(_keys(world)) - len(_keys(called))
        if not answer.steps and left_out and called.groups:
            refused, world = answer.error, called
            answer = replay(world, steps, address)
            answer = replace(answer, findings=[*answer.findings, f"{left_out} tensors of no call left out: {refused}"])
    except GradsyncError as error:
        return Verdict(
            ranks=world.size,
            reason=f"no daemon gave the exact norm: {error}",
            advice="start `gradsyncd serve`, or set GRADSYNCD to the binary to start; then audit again",
        )
    if not answer.steps:
        return _refused(world, answer)
    findings = list(answer.findings)
    if answer.error is not None:
        findings.append(
            f"the daemon answered {len(answer.steps)} of {steps} steps: {answer.error} -> see the daemon's log; the "
            "steps that it answered are compared"
        )
    return judge(
        world,
        answer.steps,
        tolerance,
        [*early, *findings],
        answer.replicas_differ,
        clip_sets(everything, len(answer.steps)),
    )


def _keys(world: World) -> set[Key]:
    return {key for keys in world.keys_of.values() for key in keys}


def _called(world: World) -> World:
    """The same world without tensors that no call uses, such as those of an optimizer that only one rank has."""
    keys = set()
    for rank, found in world.ranks.items():
        for call in (call for step in found.steps for call in step.calls):
            held = range(len(found.tensors)) if call.tensors is None else call.tensors
            keys |= {world.keys_of[rank][index] for index in held}
    ranks = {}
    for rank, found in world.ranks.items():
        kept = [index for index, key in enumerate(world.keys_of[rank]) if key in keys]
        steps = [_step_of(step, kept) for step in found.steps]
        ranks[rank] = replace(found, tensors=[found.tensors[index] for index in kept], steps=steps)
    return World(ranks)


def _step_of(step: Step, kept: Sequence[int]) -> Step:
    place = {index: number for number, index in enumerate(kept)}
    calls = [
        call if call.tensors is None else replace(call, tensors=tuple(place[index] for index in call.tensors))
        for call in step.calls
    ]
    stepped = [
        replace(one, tensors=tuple(place[index] for index in one.tensors if index in place)) for one in step.stepped
    ]
    return Step([step.rows[index] for index in kept], [step.own[index] for index in kept], calls, stepped)


def _of_this_node(ranks: Mapping[int, RankFindings], shared: bool) -> int:
    """How many ranks this node has, where only they write here; else 0."""
    whole = shared or len(ranks) == _world_size(ranks)
    return 0 if whole else max((found.local_world_size for found in ranks.values()), default=0)


def _world_size(ranks: Mapping[int, RankFindings]) -> int:
    return max((found.world_size for found in ranks.values()), default=0)


def _lacks(ranks: Mapping[int, RankFindings], shared: bool) -> tuple[str | None, str]:
    """Why these files cannot be compared, if they cannot."""
    if not ranks:
        return (
            "no process called clip_grad_norm_, get_total_norm or clip_grads_with_norm_ of torch",
            "where a script clips by functions of its own, call gradsync.torch.observe(norm) after "
            "gradsync.torch.init(model, mesh=…, mode='observe'); interpreters started with -I, -E or -S, and "
            "calls inside torch.compile, cannot be audited",
        )
    failed = {found.rank: found.failed for found in ranks.values() if found.failed is not None and not found.steps}
    if failed:
        said = "; ".join(f"rank {rank}: {reason}" for rank, reason in list(failed.items())[:4])
        placed = any(reason.startswith(("ModuleRefused", "UsageError")) for reason in failed.values() if reason)
        advice = _ADVICE if placed and _world_size(ranks) > 1 else _MEND
        return f"{len(failed)} {'rank' if len(failed) == 1 else 'ranks'} cannot be audited: {said}", advice
    here = _of_this_node(ranks, shared)
    if 0 < len(ranks) < here:
        return (
            f"only ranks {', '.join(map(str, list(ranks)[:16]))} of the {here} on this node called a clip function of "
            "torch",
            "every rank has to clip, one without gradients too; or the run ended before it did",
        )
    absent = [] if here else sorted(set(range(_world_size(ranks))) - set(ranks))
    elsewhere = [rank for rank in absent if shared and not node_of(rank, ranks)]
    if elsewhere:
        return (
            f"nothing of ranks {', '.join(map(str, elsewhere[:16]))} of {_world_size(ranks)} came into this folder",
            "give gradsync audit on every node the same --folder, which all of them see; or copy the files of all into "
            "one folder, and run gradsync verdict on it",
        )
    if absent:
        return (
            f"ranks {with_nodes(absent, ranks)} of {_world_size(ranks)} never called a clip function of torch",
            "every rank has to clip, one without gradients too; or the run ended before it did",
        )
    if any(not found.steps for found in ranks.values()):
        return "no step was completed by all ranks", "let the script run for one optimizer step at least"
    orders = {found.p for found in ranks.values()}
    if len(orders) > 1:
        return (
            f"ranks measure norms of different orders: {', '.join(map(str, sorted(orders)))}",
            "give the clip calls of all ranks one norm_type",
        )
    return _differing_meshes(ranks)


def _differing_meshes(ranks: Mapping[int, RankFindings]) -> tuple[str | None, str]:
    used = {str(tensor.mesh) for found in ranks.values() for tensor in found.tensors}
    for name in sorted(used):
        unlike = [
            found.rank for found in ranks.values() if found.meshes.get(name) != ranks[min(ranks)].meshes.get(name)
        ]
        if unlike:
            return (
                f"ranks {', '.join(map(str, unlike[:16]))} know no mesh '{name}' like that of rank {min(ranks)}",
                _ADVICE,
            )
    return None, ""


def _refused(world: World, answer: Replay) -> Verdict:
    error = answer.error
    hint = _ADVICE if world.size > 1 else ""
    if isinstance(error, RpcError) and error.kind == "weights_diverged":
        hint = "tensors of one name differ between ranks that should hold copies; " + _ADVICE
    if (
        error is not None
        and world.size > 1
        and not any(found.meshes.get("mesh") is None for found in world.ranks.values())
    ):
        hint += f". Where every rank is a stage of its own: --mesh pp={world.size}"
    return Verdict(ranks=world.size, reason=f"the ranks' tensors make no whole model: {error}", advice=hint)
