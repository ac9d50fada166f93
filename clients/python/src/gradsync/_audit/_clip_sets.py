"""Compares what the optimizers step with what the script clips, and the clip calls of the ranks with each other.

A norm can be right and still be of too little: a tensor that no call is given is stepped with whatever gradient it
has. An optimizer is the unit of intention. If no call is given anything of an optimizer, it may be left unclipped on
purpose (one half of a GAN), which is a note; if some of it is clipped and some never is, that is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ._mistakes import RIGHT
from ._sums import Sums
from ._world import Key, World

__all__ = ["ClipSets", "clip_sets", "passed", "stepped_by"]

_NAMED = 5  # how many tensors are named


@dataclass(frozen=True)
class ClipSets:
    """`problems` are mistakes whatever the norms are; `notes` may be meant so."""

    problems: Sequence[str] = ()
    notes: Sequence[str] = ()


def clip_sets(world: World, steps: int) -> ClipSets:
    """What is stepped and never clipped, and what some ranks leave out of their calls."""
    problems, notes = _never_clipped(world, steps)
    left_out, perhaps = _left_out(world, steps)
    return ClipSets([*problems, *left_out], [*notes, *perhaps])


def passed(world: World, rank: int, step: int) -> set[Key]:
    """What this rank multiplies in that step; where no rank's script ever does, what it takes norms of."""
    calls = world.ranks[rank].steps[step].calls
    known = world.keys_of[rank]
    found: set[Key] = set()
    for call in calls:
        if call.kind != "total" or not world.multiplies:
            found |= set(known) if call.tensors is None else {known[index] for index in call.tensors}
    return found


def stepped_by(world: World, rank: int) -> set[Key] | None:
    """What the optimizers of this rank step; None if no optimizer of torch steps there."""
    known = world.keys_of[rank]
    seen = [one for step in world.ranks[rank].steps for one in step.stepped]
    return {known[index] for one in seen for index in one.tensors} if seen else None


def _never_clipped(world: World, steps: int) -> tuple[list[str], list[str]]:
    clipped = {key for rank in world.ranks for step in range(steps) for key in passed(world, rank, step)}
    if not clipped:
        return _clips_nothing(world), []
    spared = _always_zero(world) | _by_value(world)
    with_clip: dict[Key, None] = {}
    without: dict[str, dict[Key, None]] = {}
    strangers, apart = 0, 0
    for rank, found in world.ranks.items():
        held: dict[int, dict[Key, None]] = {}
        kinds: dict[int, tuple[str, int]] = {}
        for one in (one for step in found.steps for one in step.stepped):
            held.setdefault(one.optimizer, {}).update((world.keys_of[rank][i], None) for i in one.tensors)
            kinds[one.optimizer] = one.kind, max(one.strangers, kinds.get(one.optimizer, ("", 0))[1])
        for number, keys in held.items():
            kind, unknown = kinds[number]
            if clipped & keys.keys():
                with_clip |= keys
                strangers = max(strangers, unknown)
            else:
                without.setdefault(kind, {}).update(keys)
                apart = max(apart, unknown)
    problems = []
    bare = [key for key in with_clip if key not in clipped and key not in spared]
    if bare or strangers:
        names = [*map(_name, bare)] + ([f"{strangers} that were not there at the first call"] if strangers else [])
        number = len(bare) + strangers
        problems.append(
            f"{number} of {len(with_clip) + strangers} stepped tensors {'is' if number == 1 else 'are'} never clipped: "
            f"{_some(names)}{_sizes(world, steps, bare, clipped)} -> pass all that the optimizer steps to the clip "
            "call, as model.parameters() does"
        )
    notes = []
    for kind, keys in without.items():
        names = [_name(key) for key in keys if key not in spared and key not in with_clip and key not in clipped]
        if names:
            notes.append(
                f"an optimizer without a clip: {kind} steps {_count(names)} that no call is given: {_some(names)}; on "
                "purpose, or else -> clip them too"
            )
    return problems, notes


def _clips_nothing(world: World) -> list[str]:
    """What is stepped where every clip call of every rank is given tensors without gradients."""
    calls = [call for found in world.ranks.values() for step in found.steps for call in step.calls]
    clips = [call for call in calls if call.kind != "total"]
    stepped = dict.fromkeys(key for rank in world.ranks for key in stepped_by(world, rank) or ())
    names = [_name(key) for key in stepped if key not in _always_zero(world)]
    if not clips or not names or any(call.tensors != () or call.strangers for call in clips):
        return []
    return [
        f"nothing is clipped: no clip call of any rank is given a gradient, and {_count(names)} with one "
        f"{'is' if len(names) == 1 else 'are'} stepped: {_some(sorted(names))} -> under DeepSpeed, which keeps "
        "gradients out of p.grad, set gradient_clipping in its configuration; else give parameters that have gradients"
    ]


def _always_zero(world: World) -> set[Key]:
    """Tensors with gradients that were measured, and were nothing but zeros on every rank in every step."""
    zero: dict[Key, bool] = {}
    for rank, found in world.ranks.items():
        for step in found.steps:
            for key, row in zip(world.keys_of[rank], step.rows, strict=True):
                if row is not None:
                    zero[key] = zero.get(key, True) and row.maximum == 0 and not row.nonfinite
    return {key for key, nothing in zero.items() if nothing}


def _by_value(world: World) -> set[Key]:
    """Tensors that `clip_grad_value_` limits, so that they need no norm."""
    return {
        world.keys_of[rank][index]
        for rank, found in world.ranks.items()
        for step in found.steps
        for one in step.stepped
        for index in one.by_value
    }


def _sizes(world: World, steps: int, bare: Sequence[Key], clipped: set[Key]) -> str:
    """The norm of what is not clipped beside that of what is, in the step in which the former is largest."""
    first = min(world.ranks)
    if not bare or not world.whole:
        return ""
    norms = [Sums(world, step, set(bare)).exact(RIGHT, first) for step in range(steps)]
    step = max(range(steps), key=lambda one: norms[one])
    if not norms[step]:
        return ""
    rest = Sums(world, step, clipped).exact(RIGHT, first)
    return f" (norm {norms[step]:.4g}, that of the clipped {rest:.4g}, in step {step})"


def _left_out(world: World, steps: int) -> tuple[list[str], list[str]]:
    found: dict[tuple[tuple[int, ...], tuple[int, ...], bool], dict[Key, set[int]]] = {}
    for step in range(steps):
        given = {rank: passed(world, rank, step) for rank in world.ranks}
        for key in sorted(set().union(*given.values())):
            those = tuple(rank for rank in world.ranks if key in given[rank])
            absent = [rank for rank in world.ranks if _could_pass(world, rank, step, key, given)]
            for sure in (True, False):
                ranks = tuple(rank for rank in absent if (stepped_by(world, rank) is not None) == sure)
                if ranks:
                    found.setdefault((ranks, those, sure), {}).setdefault(key, set()).add(step)
    problems: list[str] = []
    notes: list[str] = []
    for (ranks, those, sure), keys in found.items():
        in_steps = sorted(set().union(*keys.values()))
        many = "rank {} leaves out of its clip call" if len(ranks) == 1 else "ranks {} leave out of their clip calls"
        said = (
            f"{many.format(_ranks(ranks))} what {_words(those)} {'passes' if len(those) == 1 else 'pass'}: "
            f"{_some([_name(key) for key in keys])} (in {len(in_steps)} of {_plural(steps, 'step')}) -> pass the same "
            "parameters on every rank that holds them"
        )
        (problems if sure else notes).append(said)
    return problems, notes


def _could_pass(world: World, rank: int, step: int, key: Key, given: Mapping[int, set[Key]]) -> bool:
    """Whether this rank clips, has a gradient of the tensor, and does not clip it. A rank that does not step it (the
    optimizers of the ranks may divide the parameters among them) need not clip it either."""
    if key in given[rank] or not given[rank] or key not in world.places[rank]:
        return False
    if world.ranks[rank].steps[step].rows[world.places[rank][key]] is None:
        return False
    stepped = stepped_by(world, rank)
    return stepped is None or key in stepped


def _name(key: Key) -> str:
    name, only = key
    return name + "".join(f" ({axes}={','.join(map(str, at))})" for axes, at in only)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + ("…" if len(ranks) > 8 else "")


def _words(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + _ranks(ranks)


def _count(names: Sequence[str]) -> str:
    return _plural(len(names), "tensor")


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
