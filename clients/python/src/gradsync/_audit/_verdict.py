"""Decides from all findings and the daemon's exact norms whether the framework's norm is right, and if not, why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradsync._rounding import rounding

from ._calls import Seen, seen_calls
from ._causes import Cause, Numbers, causes, close
from ._clip_sets import ClipSets, clip_sets
from ._mistakes import RIGHT, twins
from ._sums import Sums, Way
from ._world import Group, Key, World

__all__ = ["Line", "OurStep", "Verdict", "compare_ranks", "judge", "part_name", "tolerance_of"]

_SAID = 5  # how many similar findings are printed
_SAME = 1e-6  # the daemon's norm has the precision of float32, unless the gradients are float64


_UNLIKE = Cause(
    "replicas_differ",
    "ranks hold different gradients where they should hold copies, so there is no one norm; the exact norm here is of "
    "the lowest rank's",
    "reduce the gradients of all copies before clipping: see what was also found",
)


@dataclass(frozen=True)
class OurStep:
    """The daemon's answer for one step; `groups` by label."""

    norm: float
    groups: Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """One line of the table: the whole model, a part that the script clips by itself, or a norm group.

    The numbers are those of the step that differs most; `theirs` has one per rank if ranks see different norms. With
    `implied` the script's norm of a group was not measured, but follows from the cause.
    """

    name: str
    tensors: int
    verdict: str  #: "agrees", "differs", "not seen"
    ours: float | None
    theirs: tuple[float, ...] = ()
    difference: float | None = None
    step: int = 0
    causes: tuple[Cause, ...] = ()
    implied: bool = False
    group: bool = False
    scale: float = 1.0  #: the loss scale that the norm still had, and ought not to have had
    why: str = ""  #: why it is not seen
    fix: str = ""  #: what to do, so that it is seen


@dataclass(frozen=True)
class Verdict:
    """What the audit found; `reason` says why nothing could be audited, if that is so."""

    steps: int = 0
    ranks: int = 0
    p: float = 2.0
    tolerance: float = 0.0
    tolerance_text: str = ""
    lines: Sequence[Line] = ()
    findings: Sequence[str] = ()
    replicas_differ: bool = False
    problems: Sequence[str] = ()  #: mistakes whatever the norms are
    node: str = ""  #: which ranks it is of, where others are on other nodes
    reason: str | None = None
    advice: str = ""

    @property
    def exit_code(self) -> int:
        lines = [line for line in self.lines if not line.group]
        if self.reason is None and (self.problems or self.replicas_differ):
            return 1
        if self.reason is not None or all(line.verdict == "not seen" for line in lines):
            return 2
        if any(line.verdict == "differs" for line in lines):
            return 1
        return 2 if self.node or any(line.verdict == "not seen" for line in lines) else 0


def tolerance_of(world: World) -> tuple[float, str]:
    """The tolerance for a right norm, and its reason."""
    tensors = [tensor for found in world.ranks.values() for tensor in found.tensors]
    bits, dtype = (52, "float64") if {tensor.dtype for tensor in tensors} == {"float64"} else (23, "float32")
    count = len({key for keys in world.keys_of.values() for key in keys})
    largest = max((math.prod(tensor.held_shape) for tensor in tensors), default=1)
    return rounding(bits, count, largest), (
        f"8 · 2^-{bits} · (16 + √{count} + log2 {largest}): rounding of {dtype} sums over {count} tensors of up to "
        f"{largest} elements per rank"
    )


def judge(
    world: World,
    ours: Sequence[OurStep],
    tolerance: float | None = None,
    findings: Sequence[str] = (),
    replicas_differ: bool = False,
    sets: ClipSets | None = None,
    node: str = "",
) -> Verdict:
    """Compares as many steps as the daemon answered; `sets` is what the clip calls of a larger world are given."""
    sets = clip_sets(world, len(ours)) if sets is None else sets
    limit, text = tolerance_of(world) if tolerance is None else (tolerance, "as given")
    said = list(findings)
    products, totals = seen_calls(world, len(ours), said)
    lines: list[Line] = []
    for seen in products:
        name = "whole model" if seen.whole else part_name(world, seen.keys)
        if seen.lost:
            lines.append(Line(name, len(seen.keys) + seen.strangers, "not seen", None, why=seen.lost, fix=seen.fix))
            continue
        if seen.raised:
            count = f"{seen.raised} of {seen.raised + len(seen.steps)} steps"
            said.append(
                f"{name}: in {count} the call raised or gave no norm that can be read; the others are compared -> see "
                "in the command's output what it raised"
            )
        sums = {step: Sums(world, step, None if seen.whole else seen.keys) for step in seen.steps}
        exact = {step: one.exact(RIGHT, min(world.ranks)) for step, one in sums.items()}
        if seen.whole:
            _check_ourselves(exact, ours, said)
        norms = [
            ours[step].norm if seen.whole else exact[step] if sums[step].finite else math.nan for step in seen.steps
        ]
        line = _line(world, name, seen, [sums[step] for step in seen.steps], norms, limit, said)
        if replicas_differ and [cause.kind for cause in line.causes] == ["unknown"]:
            line = replace(line, causes=(_UNLIKE,))
        lines.append(line)
        if seen.whole:
            lines += [
                _group_line(world, g, line, sums[line.step], ours[line.step], totals, limit) for g in world.groups
            ]
    if all(line.verdict != "differs" for line in lines):
        said += _perhaps_tied(world, len(ours))
    notes = [note for found in world.ranks.values() for note in found.notes]
    said = list(dict.fromkeys([*said, *sets.notes, *notes]))
    return Verdict(
        len(ours),
        len(world.ranks),
        world.p,
        limit,
        text,
        lines,
        tuple(said),
        replicas_differ,
        tuple(sets.problems),
        node,
    )


def _perhaps_tied(world: World, steps: int) -> list[str]:
    """Finds weights that may be tied: unless the audit knows of them, it counts them twice, as the script may do."""
    holders: dict[Key, set[int]] = {}
    for rank, keys in world.keys_of.items():
        for key in keys:
            holders.setdefault(key, set()).add(rank)
    apart = [(one, other) for one, other in twins(world, range(steps)) if not holders[one] & holders[other]]
    said = [
        f"'{one}' and '{other}' on different ranks have bit-equal gradients in every step, and both are counted -> if "
        f"they are one weight: --tied {one},{other}"
        for (one, _), (other, _) in apart[:_SAID]
    ]
    return said + ([f"and {len(apart) - _SAID} more such pairs"] if len(apart) > _SAID else [])


def _line(
    world: World, name: str, seen: Seen, sums: Sequence[Sums], ours: Sequence[float], tolerance: float, said: list[str]
) -> Line:
    theirs = seen.norms
    compare_ranks(world, name, seen, said)
    worst = max(range(len(ours)), key=lambda step: _distance(ours[step], theirs[step]))
    agrees = all(close(norm, ours[step], tolerance) for step, norms in enumerate(theirs) for norm in norms)
    why: tuple[Cause, ...] = ()
    if not agrees:
        keys = None if seen.whole else seen.keys
        given = [Sums(world, step, keys, own) for step, own in zip(seen.steps, seen.given, strict=True)]
        groups = _groups_left_out(world, seen)
        why = causes(Numbers(world, keys, seen.steps, sums, ours, theirs, seen.dtype, tolerance, given, groups))
    norms = theirs[worst]
    shown = tuple(norms) if len(set(map(repr, norms))) > 1 else (norms[0],)
    furthest = max(norms, key=lambda norm: _distance(ours[worst], [norm]))
    verdict = "agrees" if agrees else "differs"
    step, difference = seen.steps[worst], _relative(furthest, ours[worst])
    line = Line(name, len(seen.keys), verdict, ours[worst], shown, difference, step, why)
    return _with_loss_scale(world, line, seen, ours, said)


def _with_loss_scale(world: World, line: Line, seen: Seen, ours: Sequence[float], said: list[str]) -> Line:
    """A norm may be right and still be compared with a threshold in other units: then the line differs."""
    places = [place for place, norm in enumerate(ours) if seen.scales[place] != 1.0 and math.isfinite(norm)]
    for place in (place for place in places if seen.unscaled(place)):
        said.append(
            f"{line.name}: gradients are clipped while the loss scale {seen.scales[place]:g} still multiplies them, by "
            f"max_norm={seen.limits[place]:g}, which seems to be meant so"
        )
        break
    wrong = [place for place in places if not seen.unscaled(place)]
    if not wrong:
        return line
    worst = max(wrong, key=lambda place: (seen.steps[place] == line.step, ours[place]))
    scale, norms = seen.scales[worst], seen.norms[worst]
    exact = ours[worst] / scale
    right = f"their norm is right in units of the scaled loss: {exact:.8g} · {scale:g}"
    limit = seen.limits[worst]
    cause = Cause(
        "still_scaled",
        f"{right if line.verdict == 'agrees' else 'their norm is in units of the scaled loss'}; the scaler divides "
        f"these gradients by {scale:g} only after the clip (in {len(wrong)} of {len(ours)} steps)"
        + (f", so max_norm={limit:g} acts as {limit / scale:.2g}" if limit else ""),
        "call scaler.unscale_(optimizer) before the clip",
        tuple(group.label for group in world.groups) if seen.whole else (),
        way=RIGHT,
    )
    furthest = max(norms, key=lambda norm: _distance(exact, [norm]))
    return replace(
        line,
        verdict="differs",
        ours=exact,
        theirs=tuple(norms) if len(set(map(repr, norms))) > 1 else (norms[0],),
        difference=_relative(furthest, exact),
        step=seen.steps[worst],
        causes=(cause, *line.causes),
        scale=scale,
    )


def _groups_left_out(world: World, seen: Seen) -> tuple[str, ...]:
    """The groups of tensors that only some of the ranks with a gradient of them pass to this call."""
    found = set()
    for step, given in zip(seen.steps, seen.given, strict=True):
        passed = frozenset().union(*given.values())
        for rank, own in given.items():
            rows = world.ranks[rank].steps[step].rows
            for key, group, row in zip(world.keys_of[rank], world.groups_of[rank], rows, strict=True):
                if row is not None and key in passed and key not in own:
                    found.add(group.label)
    return tuple(sorted(found))


def _group_line(
    world: World, group: Group, whole: Line, sums: Sums, ours: OurStep, totals: Sequence[Seen], tolerance: float
) -> Line:
    keys = {
        key
        for rank, groups in world.groups_of.items()
        for key, one in zip(world.keys_of[rank], groups, strict=True)
        if one == group
    }
    first = min(world.ranks)
    own = ours.groups.get(group.label, sums.exact(RIGHT, first, group)) / whole.scale
    theirs, implied = _measured(keys, whole.step, totals), False
    blamed = [cause for cause in whole.causes if group.label in cause.groups]
    ways = [cause.way for cause in whole.causes if cause.way is not None]
    verdict = whole.verdict
    if whole.causes:
        verdict = "differs" if blamed else "agrees" if ways else "not seen"
    right = all(close(norm, own, tolerance) for norm in theirs)
    local = [sums.exact(Way({group: frozenset()}), rank, group) for rank in world.ranks]
    if not right and (whole.verdict == "agrees" or all(close(theirs[0], norm, tolerance) for norm in local)):
        theirs = ()  # It is what a rank has before it sums over ranks, or only for a log.
    if theirs:  # It is known, and need not be blamed with the others.
        verdict, blamed = ("agrees", []) if right else ("differs", blamed)
    elif len(ways) == 1 and len(whole.causes) == 1 and whole.causes[0].kind != "left_out":
        found = [sums.exact(ways[0], rank, group) for rank in world.ranks]
        theirs, implied = tuple(found) if len(set(map(repr, found))) > 1 else (found[0],), True
    furthest = max(theirs, key=lambda norm: _distance(own, [norm]), default=None)
    difference = None if furthest is None else _relative(furthest, own)
    return Line(group.label, len(keys), verdict, own, theirs, difference, whole.step, tuple(blamed), implied, True)


def _measured(keys: set[Key], step: int, totals: Sequence[Seen]) -> tuple[float, ...]:
    """The script's own norm of exactly this group, if all ranks have the same value."""
    for seen in totals:
        for where, norms in zip(seen.steps, seen.norms, strict=True):
            if where == step and seen.keys == keys and len(set(norms)) == 1:
                return (norms[0],)
    return ()


def _check_ourselves(exact: Mapping[int, float], ours: Sequence[OurStep], said: list[str]) -> None:
    for step, norm in exact.items():
        answer = ours[step]
        if math.isfinite(answer.norm) and not close(norm, answer.norm, _SAME):
            said.append(
                f"step {step}: the daemon's norm is {answer.norm!r}, the rows give {norm!r}: replicas differ, or this "
                "is an error of gradsync -> reduce the gradients of all copies alike; if they are, report it"
            )


def compare_ranks(world: World, name: str, seen: Seen, said: list[str]) -> bool:
    """Whether ranks have different norms, which is then said."""
    for step, norms in zip(seen.steps, seen.norms, strict=True):
        ranks: dict[str, list[str]] = {}
        for rank, norm in zip(world.ranks, norms, strict=True):
            ranks.setdefault(f"{norm:.9g}", []).append(str(rank))
        if len(ranks) > 1:
            which = "; ".join(f"{norm} on {', '.join(names)}" for norm, names in ranks.items())
            said.append(
                f"{name}: ranks clip by different norms (step {step}: {which}): one model, many coefficients -> sum "
                "the powers over the ranks before the clip, so that every rank multiplies by one coefficient"
            )
            return True
    return False


def part_name(world: World, keys: frozenset[Key]) -> str:
    """Names a part by its first and last tensor, because parts may share others."""
    held = dict.fromkeys(key[0] for known in world.keys_of.values() for key in known if key in keys)
    if not held:
        return "part: unknown tensors"
    first, last = next(iter(held)), list(held)[-1]
    return f"part: {first}" if first == last else f"part: {first} … {last}"


def _relative(theirs: float, ours: float) -> float | None:
    if not math.isfinite(ours) or not math.isfinite(theirs):
        return None
    return theirs / ours - 1 if ours else None if theirs else 0.0


def _distance(ours: float, theirs: Sequence[float]) -> float:
    if any(math.isfinite(norm) != math.isfinite(ours) for norm in theirs):
        return math.inf
    return max((abs(norm - ours) / ours for norm in theirs if math.isfinite(norm) and ours), default=0.0)
