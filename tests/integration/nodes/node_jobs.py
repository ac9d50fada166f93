"""Daemons of several nodes on this machine, each at an address of its own, and jobs whose ranks are on all of them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from daemon import DEADLINE_S, Daemon, free_port
from ranks_in_threads import on_all, whole

import gradsync
from gradsync import Clip, Replicate, Row, Shard, Tensor
from gradsync.errors import ConnectionLost, NodeLost, RankLost, StaleAttempt, StaleEpoch, StepTimeout

TOKEN = "0123456789abcdef0123456789abcdef"
MAX_NORM = 1.0


class Nodes:
    """One daemon for each node: node 0 at 127.0.0.2, node 1 at 127.0.0.3, and so on.

    `before`: as Daemon has it, for all nodes or by node; `more`: options of one node, behind those of all."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *options: str,
        linked: bool = True,
        before: tuple[str, ...] | Mapping[int, tuple[str, ...]] = (),
        more: Mapping[int, tuple[str, ...]] | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.coordinator = f"127.0.0.2:{self.port}"
        self._options = options
        self._linked = linked
        self._before = before
        self._more = more or {}
        (folder / "token").write_text(TOKEN)
        os.chmod(folder / "token", 0o600)
        self._stack = contextlib.ExitStack()
        self.daemons = [self._start(node) for node in range(count)]

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, node: int) -> Daemon:
        folder = self.folder / f"node{node}"
        folder.mkdir(exist_ok=True)
        listen = f"127.0.0.{node + 2}:{self.port}" if self._linked else "off"
        peer = ("--peer-listen", listen, "--peer-token-file", str(self.folder / "token"), "--peer-node", f"node{node}")
        before = self._before if isinstance(self._before, tuple) else self._before.get(node, ())
        options = (*self._options, *self._more.get(node, ()))
        return self._stack.enter_context(Daemon(*peer, *options, folder=str(folder), before=before))

    def address(self, node: int) -> str:
        return self.daemons[node].socket

    def kill(self, node: int) -> None:
        self.daemons[node].process.kill()
        self.daemons[node].process.wait(DEADLINE_S)

    def start_again(self, node: int, *, healed: bool = False) -> None:
        """`healed`: without what was to come before it, on all nodes that start from now on."""
        self._before = () if healed else self._before
        self.daemons[node] = self._start(node)


@dataclass(frozen=True)
class Route:
    """Which daemons the nodes of a job have, and where each of them looks for the coordinator."""

    addresses: tuple[str, ...]  #: of the daemons' sockets, by node
    coordinator: str
    coordinators: Mapping[int, str] | None = None  #: by node, where one of them has another way

    @staticmethod
    def over(nodes: Nodes, coordinators: Mapping[int, str] | None = None, *, turned: bool = False) -> Route:
        """`turned`: the last daemon has rank 0."""
        addresses = tuple(daemon.socket for daemon in nodes.daemons)
        last = f"127.0.0.{len(addresses) + 1}:{nodes.port}"
        return Route(addresses[::-1] if turned else addresses, last if turned else nodes.coordinator, coordinators)

    def address(self, node: int) -> str:
        return self.addresses[node]

    def coordinator_of(self, node: int) -> str:
        return (self.coordinators or {}).get(node, self.coordinator)


class NodeRank:
    """A rank of a job on `stats`: a tensor that all ranks have, and one that is cut over them."""

    def __init__(
        self,
        nodes: Nodes | Route,
        job: str,
        rank: int,
        per_node: int,
        world_size: int,
        restart_count: int | None = None,
        node: int | None = None,
    ) -> None:
        self.name, self.rank, self.world_size, self.per_node = job, rank, world_size, per_node
        self.node = rank // per_node if node is None else node
        self.address = nodes.address(self.node)
        self.client = gradsync.connect(self.address, timeout=DEADLINE_S)
        self.job = self.client.attach(
            job=job,
            rank=rank,
            world_size=world_size,
            meshes=self.meshes(),
            restart_count=restart_count,
            local_world_size=per_node,
            coordinator=nodes.coordinator_of(self.node) if isinstance(nodes, Route) else nodes.coordinator,
            timeout=DEADLINE_S,
        )
        self.grads: Any = None

    def meshes(self) -> dict[str, dict[str, int]] | None:
        """None: one axis, of all ranks."""
        return None

    def declare(self, **options: Any) -> None:
        cut = Tensor("cut", (4 * self.world_size,), local_shape=(4,), placements={"dp": Shard(0)})
        copied = Tensor("copied", (8,), placements={"dp": Replicate()})
        self.grads = self.job.declare([copied, cut], data_path="stats", clip=Clip(max_norm=MAX_NORM), **options)

    def write(self, step: int, copied: np.ndarray[Any, Any] | None = None) -> None:
        self.grads.write("copied", Row.of(copied_of(step) if copied is None else copied))
        self.grads.write("cut", Row.of(cut_of(step, self.world_size)[4 * self.rank : 4 * self.rank + 4]))

    def step(self, step: int, **given: Any) -> Any:
        self.write(step)
        return self.grads.finish(step=step, **given)

    def step_until_done(self, step: int) -> Any:
        """As a trainer does that computes the step again when it was lost."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self.step(step)
            except (NodeLost, RankLost, StaleEpoch, StaleAttempt, StepTimeout, ConnectionLost):
                assert time.monotonic() < end, f"step {step} is lost again and again"


def copied_of(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).standard_normal(8).astype(np.float32)


def cut_of(step: int, world_size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1000 + step).standard_normal(4 * world_size).astype(np.float32)


def exact_norm(step: int, world_size: int) -> float:
    whole = np.concatenate([copied_of(step), cut_of(step, world_size)]).astype(np.float64)
    return float(np.sqrt(np.sum(whole * whole)))


@contextlib.contextmanager
def job_over(
    nodes: Nodes,
    per_node: int,
    name: str = "job",
    route: Route | None = None,
    restart_count: int | None = None,
    kind: Callable[..., Any] = NodeRank,
) -> Iterator[list[Any]]:
    where = route or Route.over(nodes)
    world_size = per_node * len(where.addresses)

    def attached(rank: int) -> Any:
        return kind(where, name, rank, per_node, world_size, restart_count)

    ranks = whole(on_all(range(world_size), attached))
    try:
        yield ranks
    finally:
        close_all(ranks)


def close_all(ranks: list[NodeRank]) -> None:
    def close(rank: NodeRank) -> None:
        with contextlib.suppress(Exception):
            rank.client.close()

    on_all(ranks, close)
