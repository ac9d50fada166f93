"""What a report must have in common with the reference, for rows and for arenas."""

from __future__ import annotations

import math

import numpy as np
from reference.expected import coefficient, collectives, partition
from reference.world import World

import gradsync

NUMBERS_PER_CELL = 6  # of a scalar sum: a sum in two halves, its scale, maximum, counts of non-finite and NaN


def check_coefficient(group: gradsync.GroupReport, most: float | None, mode: str, is_wide: bool) -> None:
    wanted = coefficient(group.norm, most, mode, is_wide)
    if most is None or mode == "torch" or not group.norm > most:
        assert told_number(group.coefficient) == told_number(wanted)
        return
    assert group.clipped == math.isfinite(group.norm) or math.isinf(group.norm)
    if math.isfinite(group.norm):
        ulp = float(np.spacing(np.float64(wanted) if is_wide else np.float32(wanted)))
        assert wanted - 4 * ulp <= group.coefficient <= wanted
    else:
        assert group.coefficient == 1


def check_collectives(world: World, report: gradsync.StepReport) -> None:
    """The same levels in order; inside a level any order will do, as long as it is that of all ranks."""
    cells = len(world.groups) + len(world.layers)
    wanted = collectives(world)
    assert len(report.scalar_collectives) == len(wanted)
    found = [(partition(world, c.mesh, c.axes), c.length) for c in report.scalar_collectives]
    for level in range(3):
        here = [(c.groups, c.sums * cells * NUMBERS_PER_CELL) for c in wanted if c.level == level]
        assert sorted(found[: len(here)]) == sorted(here)
        found = found[len(here) :]


def same(got: float, wanted: float, *, double: bool) -> bool:
    """To one unit in the last place of what the norm is rounded to."""
    if math.isnan(wanted) or math.isinf(wanted):
        return told_number(got) == told_number(wanted)
    spacing = np.spacing(np.float64(wanted) if double or wanted > 3e38 else np.float32(wanted))
    return abs(got - wanted) <= float(spacing)


def told_number(value: float) -> str:
    return repr(float(value))


def told_norms(report: gradsync.StepReport) -> str:
    return repr((report.norm, report.layers, [group.norm for group in report.groups], report.counted_elements))
