"""The verdict of one node of several: what its own ranks show, and nothing about the others; and the names of nodes.

Where the ranks of other nodes wrote elsewhere, the exact norm is known only where each tensor lies within the node as a
whole (DDP over nodes; HSDP or TP within them): then it follows from the rows of this node. That the copies of other
nodes are equal is not known, so nothing here is a verdict on the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradsync._step._row import Row

from ._calls import seen_calls
from ._clip_sets import clip_sets
from ._findings import RankFindings
from ._mistakes import RIGHT
from ._sums import Sums, reaches
from ._verdict import Line, OurStep, Verdict, compare_ranks, judge, part_name
from ._world import Key, World

__all__ = ["judge_node", "node_of", "nodes_of", "with_nodes"]

_FIX = (
    "for the whole model, give gradsync audit on every node the same --folder, which all of them see; or run the same "
    "script with all its ranks on one node"
)
_SHOWN = 16


def nodes_of(ranks: Mapping[int, RankFindings]) -> list[str]:
    """One finding that says which ranks are on which node, where there are several."""
    held: dict[str, list[int]] = {}
    for rank, found in ranks.items():
        held.setdefault(found.node, []).append(rank)
    if len(held) < 2:
        return []
    return ["; ".join(f"node {node} has {_ranks(own)}" for node, own in list(held.items())[:_SHOWN])]


def with_nodes(absent: Sequence[int], ranks: Mapping[int, RankFindings]) -> str:
    """Ranks that wrote nothing, each with the node of its neighbours where that is known."""
    named = ((rank, node_of(rank, ranks)) for rank in absent[:_SHOWN])
    return ", ".join(f"{rank} (node {node})" if node else f"{rank}" for rank, node in named)


def node_of(rank: int, ranks: Mapping[int, RankFindings]) -> str:
    """The node of its neighbours, which wrote something; empty where none did."""
    for other, found in ranks.items():
        if found.local_world_size and other // found.local_world_size == rank // found.local_world_size:
            return found.node
    return ""


def _ranks(ranks: Sequence[int]) -> str:
    more = "…" if len(ranks) > _SHOWN else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, list(ranks)[:_SHOWN]))}{more}"


def judge_node(world: World, steps: int, tolerance: float | None, early: Sequence[str]) -> Verdict:
    """What the ranks of this node found, in as many steps as all of them wrote."""
    which = f"{_ranks(list(world.ranks))} of {world.size}"
    node = f"one node: {which}; what the ranks of other nodes hold and do is not seen here"
    unlike = _unlike_copies(world, steps)
    said = [*early, *unlike]
    if not reaches(world, RIGHT):
        return _without_norms(world, steps, said, node, bool(unlike))
    ours = []
    for step in range(steps):
        sums = Sums(world, step)
        norm = sums.exact(RIGHT, min(world.ranks))
        ours.append(OurStep(norm if sums.finite else float("nan"), {}))
    return judge(world, ours, tolerance, said, bool(unlike), node=node)


def _without_norms(world: World, steps: int, said: list[str], node: str, unlike: bool) -> Verdict:
    products, _ = seen_calls(world, steps, said)
    lines = []
    for seen in products:
        name = "whole model" if seen.whole else part_name(world, seen.keys)
        if not compare_ranks(world, name, seen, said) and seen.norms and len(world.ranks) > 1:
            norms = ", ".join(f"{norms[0]:.6g}" for norms in seen.norms[:5])
            said.append(f"{name}: the ranks of this node clip by equal norms: {norms}")
        why = seen.lost if seen.lost and not seen.given else "its tensors lie over ranks of other nodes as well"
        lines.append(Line(name, len(seen.keys) + seen.strangers, "not seen", None, why=why, fix=_FIX))
    sets = clip_sets(world, steps)
    notes = [note for found in world.ranks.values() for note in found.notes]
    found = tuple(dict.fromkeys([*said, *sets.notes, *notes]))
    problems = (*sets.problems, *_still_scaled(world, steps))
    return Verdict(
        steps,
        len(world.ranks),
        world.p,
        lines=lines,
        findings=found,
        replicas_differ=unlike,
        problems=problems,
        node=node,
    )


def _still_scaled(world: World, steps: int) -> list[str]:
    """Clips in units of a scaled loss, which need no exact norm to be known."""
    for rank, found in world.ranks.items():
        for number, step in enumerate(found.steps[:steps]):
            if any(row is not None and row.nonfinite for row in step.rows):
                continue
            for call in step.calls:
                if call.kind != "total" and call.scale is not None and (call.max_norm or 0.0) < call.scale:
                    return [
                        f"still_scaled: the scaler divides the gradients by {call.scale:g} only after the clip (first "
                        f"in step {number} on rank {rank}) -> call scaler.unscale_(optimizer) before the clip"
                    ]
    return []


def _unlike_copies(world: World, steps: int) -> list[str]:
    """The first tensor whose copies on this node differ in any bit."""
    for step in range(steps):
        for rank, found in world.ranks.items():
            held = zip(world.keys_of[rank], world.groups_of[rank], found.steps[step].rows, strict=True)
            for key, group, row in held:
                for other in world.span(group.mesh, frozenset(group.copied), rank):
                    theirs = _row(world, other, step, key)
                    if row is not None and theirs is not None and row.fingerprint != theirs.fingerprint:
                        return [
                            f"'{key[0]}' should be equal on ranks that replicate it, and the gradients of ranks {rank} "
                            f"and {other} differ (first in step {step}): they were not reduced alike -> "
                            "reduce the gradients of all copies before the clip"
                        ]
    return []


def _row(world: World, rank: int, step: int, key: Key) -> Row | None:
    place = world.places.get(rank, {}).get(key)
    return None if place is None else world.ranks[rank].steps[step].rows[place]
