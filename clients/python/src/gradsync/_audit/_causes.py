"""Why a norm differs: the mistakes whose prediction is the framework's number on every rank in every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradsync._rounding import NARROW

from ._mistakes import RIGHT, mistakes, twins
from ._sums import Sums, Way, reaches, round_to, ulp
from ._world import Key, World, row_norm

__all__ = ["Cause", "Numbers", "causes", "close"]

_WIDER = "compute norms in float64, or in float32 over small blocks; what is smaller than this rounding cannot be seen"
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


@dataclass(frozen=True)
class Cause:
    """Why a norm may differ; where several causes predict the same number, all of them are given."""

    kind: str
    text: str
    fix: str = ""
    groups: tuple[str, ...] = ()
    axis: str | None = None
    way: Way | None = None


@dataclass(frozen=True)
class Numbers:
    """One norm in some steps: its rows, our value per step, and theirs per step and rank, in their dtype."""

    world: World
    keys: frozenset[Key] | None  #: None for all
    steps: Sequence[int]
    sums: Sequence[Sums]
    ours: Sequence[float]
    theirs: Sequence[Sequence[float]]
    dtype: str
    tolerance: float
    given: Sequence[Sums] = ()  #: the same, of what each rank passes to its call
    left_out: tuple[str, ...] = ()  #: the groups of what only some ranks pass

    def dtypes(self) -> list[str]:
        """The dtypes in which their norm may have been computed: its own, and those of gradients that can hold it."""
        gradients = {tensor.dtype for found in self.world.ranks.values() for tensor in found.tensors}
        narrow = [dtype for dtype in sorted({*gradients, "float32"}) if dtype != self.dtype]
        seen = [norm for norms in self.theirs for norm in norms]
        return [self.dtype, *(d for d in narrow if all(repr(round_to(norm, d)) == repr(norm) for norm in seen))]

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """For each number the place of its step among `steps`, the position of its rank, and the rank."""
        return [(step, i, rank) for step in range(len(self.ours)) for i, rank in enumerate(self.world.ranks)]


def close(theirs: float, ours: float, tolerance: float) -> bool:
    """Whether two norms are equal within the tolerance; any two that are not finite are, because either stops a run."""
    if math.isfinite(ours) and math.isfinite(theirs):
        return abs(theirs - ours) <= tolerance * abs(ours)
    return not math.isfinite(ours) and not math.isfinite(theirs)


def causes(numbers: Numbers) -> tuple[Cause, ...]:
    """The causes that predict the norm; if none does, the cause `unknown`."""
    arithmetic = _lost_nan(numbers) or _arithmetic(numbers)
    if arithmetic is not None:
        return (arithmetic,)
    candidates = mistakes(numbers.world, twins(numbers.world, numbers.steps))
    left_out = _left_out(numbers)
    found = (() if left_out is None else (left_out,)) + tuple(
        Cause(one.kind, one.text, one.fix, tuple(group.label for group in one.groups), one.axis, one.way)
        for one in candidates
        if reaches(numbers.world, one.way) and _predicts(numbers, one.way)
    )
    return found or (_unknown(numbers),)


def _left_out(numbers: Numbers) -> Cause | None:
    """Whether the number of each rank is the norm of what it passes, and that is not what the others pass."""
    if not numbers.left_out or not all(
        close(numbers.theirs[step][i], numbers.given[step].exact(RIGHT, rank), numbers.tolerance)
        for step, i, rank in numbers.places
    ):
        return None
    return Cause(
        "left_out",
        "the norm of what each rank passes to its call is its number, and not all pass the same: see what is wrong "
        "below",
        "pass the same parameters on every rank that holds them",
        numbers.left_out,
        way=RIGHT,
    )


def _predicts(numbers: Numbers, way: Way) -> bool:
    """Compares with exact sums if these differ enough from a right norm; else with the framework's arithmetic."""
    exact = [(step, i, numbers.sums[step].exact(way, rank)) for step, i, rank in numbers.places]
    if all(close(norm, numbers.ours[step], numbers.tolerance) for step, _, norm in exact):
        return False
    if all(close(numbers.theirs[step][i], norm, numbers.tolerance) for step, i, norm in exact):
        return True
    near = all(close(numbers.theirs[step][i], norm, NARROW) for step, i, norm in exact)
    return near and _dtype_that_predicts(numbers, way) is not None


def _dtype_that_predicts(numbers: Numbers, way: Way) -> str | None:
    for dtype in numbers.dtypes():
        if all(
            _matches(numbers.theirs[step][i], numbers.sums[step].theirs(way, rank, dtype), dtype, numbers.tolerance)
            for step, i, rank in numbers.places
        ):
            return dtype
    return None


def _matches(theirs: float, predicted: float, dtype: str, tolerance: float) -> bool:
    if not math.isfinite(theirs) or not math.isfinite(predicted):
        return repr(theirs) == repr(predicted)
    slack = ulp(predicted, dtype) if dtype in ("bfloat16", "float16") else tolerance * abs(predicted)
    return abs(theirs - predicted) <= slack


def _arithmetic(numbers: Numbers) -> Cause | None:
    """Whether the right sums, computed as the framework does, give the framework's number."""
    exact = [(numbers.sums[step].exact(RIGHT, rank), numbers.ours[step]) for step, _, rank in numbers.places]
    if not all(close(norm, ours, numbers.tolerance) for norm, ours in exact if math.isfinite(ours)):
        return None  # ranks hold different gradients where they should hold copies, so no rank's sums are right
    dtype = _dtype_that_predicts(numbers, RIGHT)
    if dtype is None:
        return None
    pairs = [(numbers.theirs[step][i], numbers.ours[step]) for step, i, _ in numbers.places]
    if any(math.isinf(theirs) and math.isfinite(ours) for theirs, ours in pairs):
        return Cause(
            "overflow",
            f"the gradients are finite, but their powers or norm leave the range of {dtype}: a clip multiplies all of "
            "them by 0",
            "measure in float64, or divide by the largest value first",
        )
    if any(theirs == 0 < ours for theirs, ours in pairs):
        return Cause("underflow", f"the powers of the gradients are too small for {dtype}", "measure in float64")
    narrow = _narrowest_that_is_off(numbers)
    if narrow is not None and _BITS[narrow] < _BITS[dtype]:
        return Cause(
            "low_precision",
            f"the norms of {narrow} gradients are made in {narrow}, {_BITS[narrow]} binary digits: sums of such norms "
            "give their number",
            _WIDER,
        )
    return Cause(
        "low_precision",
        f"the norm is computed in {dtype}, {_BITS[dtype]} binary digits: the same sums in that dtype give their number",
        _WIDER,
    )


def _narrowest_that_is_off(numbers: Numbers) -> str | None:
    """For gradients of several dtypes: the dtypes in which norms of single gradients are wrong already."""
    world, off = numbers.world, set()
    for rank, found in world.ranks.items():
        for step in numbers.steps:
            state = found.steps[step]
            for tensor, key, row, own in zip(found.tensors, world.keys_of[rank], state.rows, state.own, strict=True):
                known = row is not None and own is not None and (numbers.keys is None or key in numbers.keys)
                if known and not close(float(own or 0.0), row_norm(row, world.p), numbers.tolerance):
                    off.add(tensor.dtype)
    return min(off, key=lambda dtype: _BITS[dtype], default=None)


def _lost_nan(numbers: Numbers) -> Cause | None:
    """The cause of a finite norm over gradients that are not finite."""
    world = numbers.world
    lost = [
        (s, i, rank)
        for s, i, rank in numbers.places
        if math.isfinite(numbers.theirs[s][i]) > math.isfinite(numbers.ours[s])
    ]
    if not lost:
        return None
    held = [pair for s, _, _ in lost for pair in _nonfinite(world, numbers.steps[s])]
    where = sorted({f"'{name}' of rank {rank}" for name, rank in held})
    for step, i, rank in lost:
        sums, theirs = numbers.sums[step], numbers.theirs[step][i]
        finite = [sums.exact(RIGHT, rank)]
        if math.isinf(world.p):  # the position of the NaN decides which maximum remains
            finite += [sums.exact(Way({group: frozenset() for group in world.groups}), one) for one in world.ranks]
        if not any(close(theirs, norm, numbers.tolerance) for norm in finite):
            return Cause("unknown", f"{', '.join(where)} is not finite, and their norm does not show it")
    how = "MAX over ranks drops NaN" if math.isinf(world.p) else "their norm is of the finite values alone"
    return Cause(
        "nan_lost",
        f"{how}: {', '.join(where)} is not finite",
        "carry the count of values that are not finite by SUM beside the norm",
    )


def _nonfinite(world: World, step: int) -> list[tuple[str, int]]:
    return [
        (key[0], rank)
        for rank, found in world.ranks.items()
        for key, row in zip(world.keys_of[rank], found.steps[step].rows, strict=True)
        if row is not None and row.nonfinite
    ]


def _unknown(numbers: Numbers) -> Cause:
    ratios = [numbers.theirs[step][i] / numbers.ours[step] for step, i, _ in numbers.places if numbers.ours[step]]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    text = "no known mistake predicts their norm"
    if finite and max(finite) - min(finite) <= 1e-4 * max(finite):
        text += f"; it is {_times(finite[0], 6)} ours on every rank in every step"
    elif finite:
        text += f"; it is {_times(min(finite), 4)} to {_times(max(finite), 4)} ours"
    if not numbers.world.whole:
        text += "; mistakes in sums over other nodes cannot be tried here"
    return Cause(
        "unknown",
        text,
        "print the norms of its parts beside those of this table (get_total_norm of each group), and see which differs",
    )


def _times(ratio: float, digits: int) -> str:
    """The ratio in words; one that is nearly 1 is told by its distance from 1."""
    text = f"{ratio:.{digits}g}"
    return f"(1 {ratio - 1:+.1e}) times" if text == "1" and ratio != 1 else f"{text} times"
