"""The value of a norm that is summed in a given way, exactly and with the framework's arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from ._world import Group, Key, World, combined, row_norm

__all__ = ["Sums", "Way", "reaches", "round_to", "ulp"]

_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
_LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0}


def round_to(value: float, dtype: str) -> float:
    """The nearest number of that dtype; a number that is too large becomes infinite."""
    if dtype == "float64" or not math.isfinite(value):
        return value
    if dtype == "bfloat16":
        bits = struct.unpack("<I", struct.pack("<f", round_to(value, "float32")))[0]
        return float(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0])
    letter = {"float32": "f", "float16": "e"}[dtype]
    try:
        return float(struct.unpack("<" + letter, struct.pack("<" + letter, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def ulp(value: float, dtype: str) -> float:
    """The distance of neighbouring numbers of that dtype at this value."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    return math.ldexp(1.0, math.frexp(value)[1] - _DIGITS[dtype])


@dataclass(frozen=True)
class Way:
    """How a norm is summed: for each group the axes and a factor; a group that is not named is summed correctly."""

    axes: Mapping[Group, frozenset[str]] = field(default_factory=dict)
    times: Mapping[Group, float] = field(default_factory=dict)
    ties: Collection[Key] | None = None  #: left out as second copies; None for those that were declared
    first: Mapping[Group, str] = field(default_factory=dict)  #: of this axis only the first rank's part counts
    after: tuple[str, str] | None = None  #: "mean" or "sum", and the axis over which it takes norms, not powers

    def axes_of(self, group: Group) -> frozenset[str]:
        return self.axes.get(group, frozenset(group.summed))

    def signature(self, groups: Collection[Group]) -> object:
        """Equal for two ways that are the same by construction."""
        parts = tuple((self.axes_of(group), self.times.get(group, 1.0), self.first.get(group)) for group in groups)
        return parts, None if self.ties is None else frozenset(self.ties), self.after


def reaches(world: World, way: Way) -> bool:
    """Whether all ranks that this way sums over were audited; those of other nodes were not."""
    spans = [(group.mesh, way.axes_of(group)) for group in world.groups]
    if way.after is not None:
        axis = way.after[1]
        spans.append((next(name for name, axes in world.meshes.items() if axis in axes), frozenset([axis])))
    return world.whole or all(
        other in world.ranks for mesh, axes in spans for rank in world.ranks for other in world.span(mesh, axes, rank)
    )


class Sums:
    """The norms of one step; `chosen` says which keys take part, None stands for all; `given`, which on each rank."""

    def __init__(
        self,
        world: World,
        step: int,
        chosen: Collection[Key] | None = None,
        given: Mapping[int, Collection[Key]] | None = None,
    ) -> None:
        self.world = world
        self.finite = True
        self._known: dict[tuple[int, Group, frozenset[Key]], float] = {}
        self._exact: dict[int, dict[Group, list[tuple[Key, float]]]] = {}
        self._own: dict[int, dict[Group, list[tuple[Key, float]]]] = {}
        for rank, found in world.ranks.items():
            exact: dict[Group, list[tuple[Key, float]]] = {}
            own: dict[Group, list[tuple[Key, float]]] = {}
            state = found.steps[step]
            for key, group, row, theirs in zip(
                world.keys_of[rank], world.groups_of[rank], state.rows, state.own, strict=True
            ):
                wanted = (chosen is None or key in chosen) and (given is None or key in given[rank])
                if wanted and row is not None:
                    exact.setdefault(group, []).append((key, row_norm(row, world.p)))
                    self.finite = self.finite and not row.nonfinite
                    own.setdefault(group, []).append((key, 0.0 if theirs is None else theirs))
            self._exact[rank], self._own[rank] = exact, own

    def exact(self, way: Way, rank: int, only: Group | None = None) -> float:
        """The norm in float64, as that rank would see it; if `only` names a group, the norm of that group."""
        return self._after(way, rank, lambda one: self._combine(way, one, only))

    def theirs(self, way: Way, rank: int, dtype: str) -> float:
        """The norm from norms per tensor that are summed in `dtype`, as frameworks do."""
        return self._after(way, rank, lambda one: self._combine_in(way, one, dtype))

    def _after(self, way: Way, rank: int, norm_of: Callable[[int], float]) -> float:
        if way.after is None:
            return norm_of(rank)
        kind, axis = way.after
        mesh = next(name for name, axes in self.world.meshes.items() if axis in axes)
        norms = [norm_of(one) for one in self.world.span(mesh, frozenset([axis]), rank)]
        return math.fsum(norms) / (len(norms) if kind == "mean" else 1)

    def _combine(self, way: Way, rank: int, only: Group | None) -> float:
        p, norms = self.world.p, []
        ties = frozenset(self.world.tied_copies if way.ties is None else way.ties)
        for group in self.world.groups:
            if only is not None and group != only:
                continue
            times = way.times.get(group, 1.0)
            factor = 1.0 if math.isinf(p) else times ** (1 / p)
            for one in self._ranks(way, group, rank):
                norms.append(factor * self._held(one, group, ties))
        return combined(norms, p)

    def _ranks(self, way: Way, group: Group, rank: int) -> tuple[int, ...]:
        """The ranks whose powers are summed for this group."""
        axis = way.first.get(group)
        if axis is None:
            return self.world.span(group.mesh, way.axes_of(group), rank)
        first = self.world.span(group.mesh, frozenset([axis]), rank)[0]
        return self.world.span(group.mesh, way.axes_of(group) - {axis}, first)

    def _held(self, rank: int, group: Group, ties: frozenset[Key]) -> float:
        """The rows that one rank holds of a group, cached because every mistake needs them."""
        found = self._known.get((rank, group, ties))
        if found is None:
            held = self._exact[rank].get(group, ())
            found = combined((norm for key, norm in held if key not in ties), self.world.p)
            self._known[rank, group, ties] = found
        return found

    def _combine_in(self, way: Way, rank: int, dtype: str) -> float:
        p, total = self.world.p, []
        ties = self.world.tied_copies if way.ties is None else way.ties
        wide = "float64" if dtype == "float64" else "float32"  # the dtype of the sums inside one kernel
        for group in self.world.groups:
            parts: dict[Key, list[float]] = {}
            for one in self._ranks(way, group, rank):
                for key, norm in self._own[one].get(group, ()):
                    if key not in ties:
                        parts.setdefault(key, []).append(norm)
            times = way.times.get(group, 1.0)
            for norms in parts.values():
                whole = norms[0]
                if len(norms) > 1 or times != 1.0:
                    whole = _root(times * sum(_power(norm, p, dtype) for norm in norms), norms, p, dtype)
                total.append(whole)
        if not total:
            return 0.0
        return round_to(_root(sum(_power(norm, p, wide) for norm in total), total, p, wide), dtype)


def _power(norm: float, p: float, dtype: str) -> float:
    if math.isinf(p) or math.isnan(norm):
        return norm
    return round_to(math.inf if norm > _LARGEST["float64"] ** (1 / p) else norm**p, dtype)


def _root(total: float, norms: list[float], p: float, dtype: str) -> float:
    if any(math.isnan(norm) for norm in norms):
        return math.nan
    if math.isinf(p):
        return max(norms)
    total = round_to(total, dtype)
    return round_to(total ** (1 / p) if math.isfinite(total) else total, dtype)
