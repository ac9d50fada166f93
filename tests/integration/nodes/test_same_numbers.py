"""Random worlds at one daemon and over several: norms within one unit in the last place, equal bits on all ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon import DEADLINE_S, Daemon
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from node_jobs import Nodes

import gradsync

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "python/reduced"))

from product import MOST_RANKS, Parts, declare, fill, parts_of, told
from reference.declare import declarations
from reference.expected import wide
from reference.strategies import worlds
from reference.world import World

NODES = 3
EXAMPLES = {"": 40, "all": 200}.get(os.environ.get("LONG", ""), 80)


class Places:
    """One daemon, and three that know each other, each with a connection for every rank that a world may have."""

    def __init__(self, alone: str, nodes: Nodes, stack: contextlib.ExitStack) -> None:
        self._coordinator = nodes.coordinator
        self._number = itertools.count()
        self._threads = stack.enter_context(ThreadPoolExecutor(MOST_RANKS))
        addresses = [alone, *(nodes.address(node) for node in range(NODES))]
        self._clients = [
            [stack.enter_context(gradsync.connect(address, timeout=DEADLINE_S)) for _ in range(MOST_RANKS)]
            for address in addresses
        ]

    def reports(self, world: World, parts: Parts, counts: Sequence[int]) -> list[list[gradsync.StepReport]]:
        """What each rank gets in two steps, of which the second is asked for in halves. `counts` has how many ranks are
        on each node, in the order of ranks; one number: all are at one daemon."""
        name, tensors = f"job-{next(self._number)}", declarations(world)
        node_of = [node for node, count in enumerate(counts) for _ in range(count)]

        def of_rank(rank: int) -> list[gradsync.StepReport]:
            node = node_of[rank]
            client = self._clients[0 if len(counts) == 1 else 1 + node][rank]
            job = client.attach(
                name,
                rank,
                world.world_size,
                world.meshes,
                local_world_size=counts[node],
                coordinator=self._coordinator,
                timeout=DEADLINE_S,
            )
            try:
                grads = declare(world, job, tensors[rank], timeout=DEADLINE_S)
                fill(grads, world, parts[rank])
                first = grads.finish()
                fill(grads, world, parts[rank])
                return [first, grads.compute_norm(), grads.apply_clip()]
            finally:
                job.detach()

        return [*self._threads.map(of_rank, range(world.world_size), timeout=2 * DEADLINE_S)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("nodes")
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(Daemon(folder=str(tmp_path_factory.mktemp("alone"))))
        yield Places(alone.socket, stack.enter_context(Nodes(folder, NODES)), stack)


@st.composite
def worlds_over_nodes(draw: st.DrawFn) -> tuple[World, tuple[int, ...]]:
    """A world, and how many of its ranks are on each of two or three nodes."""
    world = draw(worlds(min_tensors=1).filter(lambda world: world.world_size > 1))
    size = world.world_size
    cuts = draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=min(NODES, size) - 1, unique=True))
    ends = [0, *sorted(cuts), size]
    return world, tuple(after - before for before, after in itertools.pairwise(ends))


@pytest.mark.training
@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(worlds_over_nodes())
def test_several_daemons_answer_as_one_does(places: Places, drawn: tuple[World, tuple[int, ...]]) -> None:
    world, counts = drawn
    parts = parts_of(world)
    alone = places.reports(world, parts, [world.world_size])[0]
    over = places.reports(world, parts, counts)
    for reports in over[1:]:
        assert [told(report) for report in reports] == [told(report) for report in over[0]], "equal on all ranks"
        assert [bits(report) for report in reports] == [bits(report) for report in over[0]]
    for one, other in zip(alone, over[0], strict=True):
        compare(world, one, other)


def bits(report: gradsync.StepReport) -> list[str]:
    """The norm and the coefficient, and those of each clip group."""
    return [one.hex() for group in (report, *report.groups) for one in (group.norm, group.coefficient)]


def compare(world: World, one: gradsync.StepReport, other: gradsync.StepReport) -> None:
    double = any(wide(world, group) for group in world.groups)
    assert within_one_ulp(one.norm, other.norm, double)
    for group, theirs in zip(one.groups, other.groups, strict=True):
        double = wide(world, group.name)
        assert within_one_ulp(group.norm, theirs.norm, double)
        if group.norm == theirs.norm or math.isnan(group.norm):
            assert repr(group.coefficient) == repr(theirs.coefficient)
        assert (group.name, group.clipped) == (theirs.name, theirs.clipped)
    for layer, theirs_of_it in zip(one.layers, other.layers, strict=True):
        assert layer.name == theirs_of_it.name
        assert within_one_ulp(layer.norm, theirs_of_it.norm, double=True)
    for name in ("counted_elements", "absent", "missing", "divergence", "nonfinite", "found_inf"):
        assert getattr(one, name) == getattr(other, name), name


def within_one_ulp(one: float, other: float, double: bool) -> bool:
    if not math.isfinite(one):
        return repr(one) == repr(other)
    spacing: Any = np.spacing(np.float64(one) if double or one > 3e38 else np.float32(one))
    return abs(one - other) <= float(spacing)
