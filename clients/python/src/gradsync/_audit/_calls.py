"""Joins the calls of all ranks: which tensors one norm clips, and which number each rank has for it.

Scripts differ from step to step (two models in turn, a part only sometimes), so calls of different steps are one line
of the verdict only if they are of the same tensors. Within a step the calls of ranks belong together by their order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ._findings import Call
from ._sums import round_to
from ._world import Key, World, combined

__all__ = ["Seen", "seen_calls"]


_NOTHING = (
    "a call was given no gradients on any rank and clips nothing -> give it parameters with gradients; a generator, as "
    "model.parameters() is, can be read only once"
)


@dataclass(frozen=True)
class Seen:
    """The norms of these tensors, per step and rank.

    `whole` says that the tensors are all that have a gradient. `lost` says why the norms cannot be compared, `fix` what
    to do. `strangers` counts tensors that no rank declared, `raised` further steps in which the call gave no number.
    Per step, `given` has the tensors of each rank, `scales` the loss scale that the gradients still had (1 for none),
    and `limits` what the norm was compared with.
    """

    keys: frozenset[Key]
    dtype: str
    steps: Sequence[int]
    norms: Sequence[Sequence[float]]
    whole: bool = False
    lost: str = ""
    fix: str = ""
    strangers: int = 0
    raised: int = 0
    given: Sequence[Mapping[int, frozenset[Key]]] = ()
    scales: Sequence[float] = ()
    limits: Sequence[float] = ()

    def unscaled(self, place: int) -> bool:
        """Whether that step compared what it ought to: its threshold may be multiplied by the loss scale as well."""
        return self.scales[place] == 1.0 or self.limits[place] >= self.scales[place]


@dataclass(frozen=True)
class _Joined:
    """One call of all ranks in one step."""

    step: int
    keys: frozenset[Key]
    order: float
    dtype: str
    norms: Sequence[float | None]
    lost: str
    fix: str
    strangers: int
    given: Mapping[int, frozenset[Key]]
    scale: float
    limit: float


def seen_calls(world: World, steps: int, said: list[str]) -> tuple[list[Seen], list[Seen]]:
    """First what the steps multiplied by, or their last norm if they did not multiply; then the norms of parts."""
    products: list[_Joined] = []
    totals: list[_Joined] = []
    for step in range(steps):
        merged = {rank: _merged(found.steps[step].calls) for rank, found in world.ranks.items()}
        every = _joined(world, step, {rank: one[0] for rank, one in merged.items()})
        held = [one for one in every if one.keys or one.strangers]
        if len(held) < len(every):
            said.append(_NOTHING)
        norms = _joined(world, step, {rank: one[1] for rank, one in merged.items()})
        totals += [one for one in norms if not one.lost]
        products += held or [one for one in norms if one.keys and one.order == world.p][-1:]
    if not products:
        said.append(
            "no call of a clip function could be matched over the ranks; nothing is compared -> let every rank make "
            "the same calls in the same order"
        )
    return _seen(world, products), _seen(world, totals)


def _merged(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Separates calls that multiply from those that only compute a norm, and joins those that multiply by one norm."""
    products: list[Call] = []
    for call in calls:
        if call.kind == "total":
            continue
        same = [i for i, one in enumerate(products) if call.kind == one.kind == "apply" and _equal(call.norm, one.norm)]
        if same and call.tensors is not None:
            before = products[same[0]]
            both = None if before.tensors is None else tuple(sorted({*before.tensors, *call.tensors}))
            products[same[0]] = replace(before, tensors=both, strangers=before.strangers + call.strangers)
        else:
            products.append(call)
    return products, [call for call in calls if call.kind == "total"]


def _equal(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def _joined(world: World, step: int, calls: Mapping[int, Sequence[Call]]) -> list[_Joined]:
    found = []
    for row in _rows(world, calls):
        absent = [str(rank) for rank in world.ranks if rank not in row]
        orders = sorted({call.p for call in row.values()})
        strangers = max(call.strangers for call in row.values())
        lost = fix = ""
        if absent:
            lost = f"ranks {', '.join(absent[:8])} made no such call in step {step}"
            fix = "let every rank make the same calls in the same order, also one without gradients"
        elif strangers:
            lost = f"{strangers} of its tensors are of no module or optimizer that was there at the first call"
            fix = "make all models and optimizers before the first clip, or audit a run that starts with this one"
        elif orders != [world.p]:
            lost = f"it is of order {', '.join(f'{order:g}' for order in orders)}, the first was of {world.p:g}"
            fix = "give all clip calls one norm_type while the script is audited"
        dtypes = [call.dtype for call in row.values()]
        found.append(
            _Joined(
                step,
                frozenset().union(*(_keys(world, rank, call) for rank, call in row.items())),
                orders[0],
                max(sorted(set(dtypes)), key=dtypes.count),
                [] if lost else [_norm_of(rank, row) for rank in world.ranks],
                lost,
                fix,
                strangers,
                {rank: _keys(world, rank, call) for rank, call in row.items()},
                max(call.scale or 1.0 for call in row.values()),
                max((call.max_norm for call in row.values() if call.max_norm is not None), default=0.0),
            )
        )
    return found


def _rows(world: World, calls: Mapping[int, Sequence[Call]]) -> list[dict[int, Call]]:
    """Matches calls by their order; where ranks made different numbers of calls, by equal tensors."""
    if len({len(own) for own in calls.values()}) == 1:
        return [dict(zip(calls, row, strict=True)) for row in zip(*calls.values(), strict=True)]
    rows: dict[tuple[frozenset[Key], int], dict[int, Call]] = {}
    for rank, own in calls.items():
        before: Counter[frozenset[Key]] = Counter()
        for call in own:
            keys = _keys(world, rank, call)
            rows.setdefault((keys, before[keys]), {})[rank] = call
            before[keys] += 1
    return list(rows.values())


def _keys(world: World, rank: int, call: Call) -> frozenset[Key]:
    known = world.keys_of[rank]
    return frozenset(known if call.tensors is None else (known[index] for index in call.tensors))


def _norm_of(rank: int, row: Mapping[int, Call]) -> float | None:
    call = row[rank]
    if not call.over:
        return call.norm
    norms = [row[other].norm for other in call.over if other in row]
    parts = [norm for norm in norms if norm is not None]
    return round_to(combined(parts, call.p), call.dtype) if len(parts) == len(call.over) else None


def _seen(world: World, joined: Sequence[_Joined]) -> list[Seen]:
    """Joins the calls for each set of tensors; all sets that are the whole model count as one."""
    whole = _whole_sets(world, joined)
    everything = frozenset(key for keys in world.keys_of.values() for key in keys)
    alike: dict[tuple[frozenset[Key], str], list[_Joined]] = {}
    for one in joined:
        alike.setdefault((everything if one.keys in whole and not one.lost else one.keys, one.lost), []).append(one)
    found = []
    for (keys, lost), calls in alike.items():
        pairs = [(one, [norm for norm in one.norms if norm is not None]) for one in calls]
        told = [] if lost else [(one, norms) for one, norms in pairs if len(norms) == len(world.ranks)]
        dtypes = [one.dtype for one in calls]
        found.append(
            Seen(
                keys,
                max(sorted(set(dtypes)), key=dtypes.count),
                [one.step for one, _ in told],
                [norms for _, norms in told],
                not lost and calls[0].keys in whole,
                lost if lost or told else "its calls raised, or their norm cannot be read",
                calls[0].fix if lost or told else "see in the command's output what they raised",
                max(one.strangers for one in calls),
                0 if lost or not told else len(calls) - len(told),
                [one.given for one, _ in told],
                [one.scale for one, _ in told],
                [one.limit for one, _ in told],
            )
        )
    return sorted(found, key=lambda seen: not seen.whole)


def _whole_sets(world: World, joined: Sequence[_Joined]) -> set[frozenset[Key]]:
    """The sets that contain every tensor that ever has a gradient, or that has one in the steps of the set."""
    present: dict[int, set[Key]] = {}
    for step in {one.step for one in joined}:
        present[step] = {
            key
            for rank, found in world.ranks.items()
            for key, row in zip(world.keys_of[rank], found.steps[step].rows, strict=True)
            if row is not None
        }
    ever = set().union(*present.values())
    compared = [one for one in joined if not one.lost]
    sets = {one.keys for one in compared}
    covering = {keys for keys in sets if all(keys >= present[one.step] for one in compared if one.keys == keys)}
    covered = {one.step for one in compared if one.keys in covering}
    # If a script trains two models in turn, each covers its own steps, but they have nothing in common: they are parts.
    if covering and frozenset.intersection(*covering) and covered == set(present):
        return covering
    return {keys for keys in sets if keys >= ever}
