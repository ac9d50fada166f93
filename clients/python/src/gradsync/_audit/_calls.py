"""What the ranks' calls were together: what is clipped by one norm, of which tensors, and each rank's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ._findings import Call
from ._sums import round_to
from ._world import Key, World, combined

__all__ = ["Seen", "seen_calls"]


@dataclass(frozen=True)
class Seen:
    """A norm of these tensors, per step and rank; None where a rank's call has none, or of another order."""

    keys: frozenset[Key]
    dtype: str
    norms: Sequence[Sequence[float | None]]


def seen_calls(world: World, steps: int, said: list[str]) -> tuple[list[Seen], list[Seen]]:
    """One for each product, or where a script makes none for each norm; then norms of parts, made on the way there."""
    per_rank = {rank: [_merged(step.calls) for step in found.steps[:steps]] for rank, found in world.ranks.items()}
    counts = {len(products) for merged in per_rank.values() for products, _ in merged}
    if not counts or 0 in counts:
        said.append("some ranks called no clip function in some steps; nothing is compared")
        return [], []
    if len(counts) > 1:
        said.append(f"ranks clip {' or '.join(map(str, sorted(counts)))} times per step; the first calls are compared")
    products = [
        _together(world, {r: [m[0][i] for m in one] for r, one in per_rank.items()}) for i in range(min(counts))
    ]
    held = [seen for seen in products if seen.keys]
    if len(held) < len(products):
        said.append("a call was given no gradients on any rank and clips nothing; a generator that was read before?")
    numbers = {len(totals) for merged in per_rank.values() for _, totals in merged}
    parts = min(numbers) if len(numbers) == 1 else 0
    totals = [_together(world, {r: [m[1][i] for m in one] for r, one in per_rank.items()}) for i in range(parts)]
    strangers = max(call.strangers for found in world.ranks.values() for step in found.steps for call in step.calls)
    if strangers:
        said.append(f"{strangers} tensors that were clipped are of no module that was found; they are not compared")
    return held or [seen for seen in totals if seen.keys][-1:], totals


def _merged(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Products by one and the same norm are one."""
    products: list[Call] = []
    for call in calls:
        if call.kind == "total":
            continue
        same = [i for i, one in enumerate(products) if call.kind == one.kind == "apply" and call.norm == one.norm]
        if same and call.tensors is not None:
            before = products[same[0]]
            both = None if before.tensors is None else tuple(sorted({*before.tensors, *call.tensors}))
            products[same[0]] = replace(before, tensors=both)
        else:
            products.append(call)
    totals = [call for call in calls if call.kind == "total"]
    return (products, totals) if products else (totals, [])


def _together(world: World, calls: Mapping[int, Sequence[Call]]) -> Seen:
    keys: set[Key] = set()
    for rank, own in calls.items():
        known = world.keys_of[rank]
        for call in own:
            keys |= set(known) if call.tensors is None else {known[index] for index in call.tensors}
    steps = len(next(iter(calls.values())))
    norms = [
        [_norm_of(world, rank, {one: own[step] for one, own in calls.items()}) for rank in calls]
        for step in range(steps)
    ]
    dtypes = [call.dtype for own in calls.values() for call in own]
    return Seen(frozenset(keys), max(set(dtypes), key=dtypes.count), norms)


def _norm_of(world: World, rank: int, calls: Mapping[int, Call]) -> float | None:
    call = calls[rank]
    if call.p != world.p:
        return None
    if not call.over:
        return call.norm
    norms = [calls[other].norm for other in call.over if other in calls]
    whole = [norm for norm in norms if norm is not None]
    return round_to(combined(whole, call.p), call.dtype) if len(whole) == len(call.over) else None
