"""The known mistakes of distributed norms. Each is a way of summing, so that the norm it predicts can be compared.

Where a mistake could concern several groups, it is tried for each of them and for all together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ._sums import Way
from ._world import Group, Key, World

__all__ = ["RIGHT", "Mistake", "mistakes", "twins"]

RIGHT = Way()


@dataclass(frozen=True)
class Mistake:
    """One wrong way of summing, and its description in words."""

    kind: str
    text: str
    fix: str
    way: Way
    groups: tuple[Group, ...] = ()
    axis: str | None = None


def mistakes(world: World, step_twins: Sequence[tuple[Key, Key]] = ()) -> list[Mistake]:
    """All mistakes that are possible in this world; of mistakes with the same effect only the first."""
    found: dict[object, Mistake] = {RIGHT.signature(world.groups): Mistake("", "", "", RIGHT)}
    for mistake in (*_per_axis(world), *_everywhere(world), *_tied(world, step_twins)):
        found.setdefault(mistake.way.signature(world.groups), mistake)
    return list(found.values())[1:]


def twins(world: World, steps: Collection[int]) -> list[tuple[Key, Key]]:
    """Pairs of tensors under different names whose gradients were equal in all of these steps, to the last bit."""
    seen: dict[Key, list[object]] = {}
    for rank, findings in world.ranks.items():
        for number in set(steps):
            for key, row in zip(world.keys_of[rank], findings.steps[number].rows, strict=True):
                if row is not None and (row.power_sum > 0 or row.maximum > 0):
                    entry = seen.setdefault(key, [])
                    found = (number, row.power_sum, row.maximum, row.fingerprint)
                    if found not in entry:
                        entry.append(found)
    first: dict[object, Key] = {}
    pairs = []
    for key, entry in seen.items():
        numbers = {item[0] for item in entry if isinstance(item, tuple)}
        other = first.setdefault(tuple(sorted(entry, key=repr)), key)
        if other != key and len(numbers) == len(set(steps)) and not {key, other} & world.tied_copies:
            pairs.append((other, key))
    return pairs


def _subsets(groups: list[Group]) -> Iterator[tuple[Group, ...]]:
    if len(groups) > 1:
        yield tuple(groups)
    yield from ((group,) for group in groups)


def _per_axis(world: World) -> Iterator[Mistake]:
    for axis in world.axes:
        size = world.size_of(axis)
        summed = [group for group in world.groups if axis in group.summed]
        copied = [group for group in world.groups if axis in group.copied]
        yield from _left_out(world, axis, summed)
        yield from _first_only(world, axis, summed)
        yield from _double_counts(world, axis, size, copied)
        yield from _summed_twice(world, axis, size, summed, copied)
        yield from _averaged(world, axis, size, summed)


def _left_out(world: World, axis: str, summed: list[Group]) -> Iterator[Mistake]:
    what = {"pp": "the other pipeline stages", "ep": "the experts of other ranks"}.get(axis, "the other parts")
    for some in _subsets(summed):
        yield Mistake(
            "axis_missing",
            f"the norm of {_names(world, some)} is not summed over '{axis}': {what} are left out",
            f"sum the powers over '{axis}' once",
            Way({group: frozenset(group.summed) - {axis} for group in some}),
            some,
            axis,
        )


def _first_only(world: World, axis: str, summed: list[Group]) -> Iterator[Mistake]:
    for some in _subsets(summed):
        yield Mistake(
            "first_only",
            f"of {_names(world, some)} only what the first rank along '{axis}' holds is counted, as of copies",
            f"mark what is split along '{axis}' as split (Megatron and DeepSpeed: tensor_model_parallel = True)",
            Way(first=dict.fromkeys(some, axis)),
            some,
            axis,
        )


def _double_counts(world: World, axis: str, size: int, copied: list[Group]) -> Iterator[Mistake]:
    for some in _subsets(copied):
        yield Mistake(
            "double_count",
            f"{_names(world, some)} counted {size} times: the powers are summed over '{axis}', along which every "
            "rank holds a copy",
            f"leave '{axis}' out of the sum for what is copied along it",
            Way({group: frozenset(group.summed) | {axis} for group in some}),
            some,
            axis,
        )


def _summed_twice(world: World, axis: str, size: int, summed: list[Group], copied: list[Group]) -> Iterator[Mistake]:
    for some in _subsets(summed):
        yield Mistake(
            "summed_twice",
            f"{_names(world, some)} counted {size} times: the powers, whole already, are summed over '{axis}' once "
            "more",
            f"sum over '{axis}' in one place only",
            Way(times=dict.fromkeys(some, float(size))),
            some,
            axis,
        )
    if summed and copied:
        yield Mistake(
            "summed_twice",
            f"everything counted {size} times: the whole sum of powers is summed over '{axis}' once more",
            f"sum over '{axis}' only what is spread over it, and once",
            Way(
                {group: frozenset(group.summed) | {axis} for group in copied},
                dict.fromkeys(summed, float(size)),
            ),
            (*summed, *copied),
            axis,
        )


def _averaged(world: World, axis: str, size: int, summed: list[Group]) -> Iterator[Mistake]:
    for some in _subsets(summed):
        yield Mistake(
            "averaged",
            f"the powers of {_names(world, some)} are averaged over '{axis}', not summed",
            f"use a SUM over '{axis}'",
            Way(times=dict.fromkeys(some, 1.0 / size)),
            some,
            axis,
        )
    without = {group: frozenset(group.summed) - {axis} for group in summed}
    for kind, word in (("mean", "averaged"), ("sum", "added up")):
        yield Mistake(
            "averaged" if kind == "mean" else "norms_added",
            f"norms are {word} over '{axis}', not their powers",
            f"sum the powers over '{axis}', then take the root",
            Way(without, after=(kind, axis)),
            tuple(world.groups),
            axis,
        )


def _everywhere(world: World) -> Iterator[Mistake]:
    groups = tuple(world.groups)
    yield Mistake(
        "local_only",
        "each rank's norm is of what it holds itself: nothing is summed over ranks",
        "sum the powers over the axes that split tensors",
        Way(dict.fromkeys(groups, frozenset())),
        groups,
    )
    for group in (group for group in groups if len(group.summed) > 1):
        yield Mistake(
            "local_only",
            f"the norm of {_names(world, [group])} is of each rank's own part: it is summed over no axis",
            f"sum its powers over {' and '.join(map(repr, group.summed))}",
            Way({group: frozenset()}),
            (group,),
        )
    yield Mistake(
        "all_ranks",
        "everything is summed over all ranks: copies are counted once per rank",
        "sum only over the axes that split a tensor",
        Way({group: frozenset((*group.summed, *group.copied)) for group in groups}),
        groups,
    )


def _tied(world: World, step_twins: Sequence[tuple[Key, Key]]) -> Iterator[Mistake]:
    if world.tied_copies:
        names = ", ".join(sorted(f"'{name}'" for name, _ in world.tied_copies))
        yield Mistake(
            "tied_twice",
            f"tied weights counted twice: also as {names}",
            "count a tied weight once",
            Way(ties=()),
            _groups_with(world, world.tied_copies),
        )
    if step_twins:
        pairs = ", ".join(f"'{one}' and '{other}'" for (one, _), (other, _) in step_twins)
        yield Mistake(
            "tied_once",
            f"{pairs} have equal gradients in every step and were counted once: they seem to be one tied "
            "weight that gradsync does not know of",
            "declare it: tied=[(…, …)]",
            Way(ties={*world.tied_copies, *(copy for _, copy in step_twins)}),
            _groups_with(world, {copy for _, copy in step_twins}),
        )


def _groups_with(world: World, keys: Collection[Key]) -> tuple[Group, ...]:
    held = {
        group
        for rank, known in world.keys_of.items()
        for key, group in zip(known, world.groups_of[rank], strict=True)
        if key in keys
    }
    return tuple(sorted(held))


def _names(world: World, groups: Sequence[Group]) -> str:
    if len(groups) == len(world.groups):
        return "everything"
    return " and ".join(f"[{group.label}]" for group in groups)
