"""The findings of one rank of an audit: a file of JSON lines with a head and then one line per step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradsync._placements import Axes, Only, Placement, Replicate, Shard
from gradsync._step._row import Row
from gradsync._tensor import Tensor

__all__ = [
    "DONE",
    "Call",
    "RankFindings",
    "RankWriter",
    "Step",
    "Stepped",
    "rank_path",
    "read_ranks",
    "tensor_of_wire",
]

DONE = b'{"done": true}\n'


def rank_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.jsonl"


@dataclass(frozen=True)
class Call:
    """One call of the framework's function.

    Args:
        kind: "clip" computes the norm and multiplies; "apply" multiplies by a given norm; "total" only computes it.
        tensors: indices of the tensors that it was given; None stands for everything with a gradient.
        norm: what it returned or was given; None if it raised, or if the norm cannot be read.
        over: the ranks whose numbers together make the norm, if it is not reduced yet (a partial DTensor).
        strangers: how many of the given tensors are not of the audited model.
        max_norm: what the norm was compared with; None if it cannot be read, or if nothing was.
        scale: the loss scale that the gradients were still multiplied by; None if they were not.
    """

    kind: str
    p: float
    norm: float | None
    dtype: str = "float32"
    tensors: tuple[int, ...] | None = None
    over: tuple[int, ...] = ()
    strangers: int = 0
    max_norm: float | None = None
    scale: float | None = None


@dataclass(frozen=True)
class Stepped:
    """What one optimizer of this rank stepped with a gradient since the line before; optimizers are numbered as they
    first step. `strangers` counts tensors that are not of the audited model, and that no call was given; `by_value`
    are those that the script clips by value.
    """

    optimizer: int
    kind: str
    tensors: tuple[int, ...]
    strangers: int = 0
    by_value: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """`rows` are in the order of the declaration, None without a gradient; `own` are norms made the framework's way."""

    rows: Sequence[Row | None]
    own: Sequence[float | None]
    calls: Sequence[Call]
    stepped: Sequence[Stepped] = ()


@dataclass(frozen=True)
class RankFindings:
    """One rank: what it holds, its steps, and why it stopped early."""

    rank: int
    world_size: int
    meshes: Mapping[str, Mapping[str, int]]
    tensors: Sequence[Tensor]
    p: float
    notes: Sequence[str] = ()
    steps: Sequence[Step] = field(default_factory=list)
    failed: str | None = None
    done: bool = False
    local_world_size: int = 0  #: how many ranks this node has; 0 where it has all, or nobody says
    node: str = ""  #: the name of its node, where the job spans nodes


class RankWriter:
    """The file of this rank; a line is on disk when its call returns."""

    def __init__(self, folder: Path, rank: int) -> None:
        # A second process of the same rank (a forked or restarted one) must not overwrite the file.
        self._file = rank_path(folder, rank).open("x", encoding="utf-8")

    def head(
        self,
        rank: int,
        world_size: int,
        meshes: Mapping[str, Mapping[str, int]],
        tensors: Sequence[Tensor],
        p: float,
        notes: Sequence[str],
        local_world_size: int = 0,
        node: str = "",
    ) -> None:
        wires = [tensor.encode(None) for tensor in tensors]
        place = {"rank": rank, "world_size": world_size, "local_world_size": local_world_size, "node": node}
        self._put(head={**place, "meshes": meshes, "p": p, "notes": list(notes)}, tensors=wires)

    def step(self, step: Step) -> None:
        rows = [None if row is None else list(_fields(row)) for row in step.rows]
        calls, stepped = [asdict(call) for call in step.calls], [asdict(one) for one in step.stepped]
        self._put(step={"rows": rows, "own": list(step.own), "calls": calls, "stepped": stepped})

    def failed(self, reason: str, world_size: int) -> None:
        self._put(failed=reason, world_size=world_size)

    def done(self) -> None:
        self._put(done=True)
        self._file.close()

    def _put(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read_ranks(folder: Path) -> dict[int, RankFindings]:
    """The findings of every rank that wrote a head; an incomplete last line is left out."""
    found = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        findings = _read(path)
        if findings is not None:
            found[findings.rank] = findings
    return dict(sorted(found.items()))


def _read(path: Path) -> RankFindings | None:
    head: dict[str, Any] | None = None
    tensors: list[Tensor] = []
    steps: list[Step] = []
    failed, world_size, done = None, 0, False
    for text in path.read_text("utf-8").splitlines(keepends=True):
        if not text.endswith("\n"):
            break
        line = json.loads(text)
        if "head" in line:
            head, tensors = line["head"], [tensor_of_wire(wire) for wire in line["tensors"]]
        elif "step" in line:
            steps.append(_step(line["step"]))
        failed, world_size = line.get("failed", failed), line.get("world_size", world_size)
        done = done or line.get("done", False)
    if head is None:
        rank = int(path.stem.rpartition("-")[2])
        return None if failed is None else RankFindings(rank, world_size, {}, [], 2.0, failed=failed, done=done)
    return RankFindings(
        head["rank"],
        head["world_size"],
        head["meshes"],
        tensors,
        head["p"],
        head["notes"],
        steps,
        failed,
        done,
        head["local_world_size"],
        head["node"],
    )


def _fields(row: Row) -> tuple[float, ...]:
    return (row.power_sum, row.power_sum_low, row.scale, row.maximum, row.nonfinite, row.nan, row.fingerprint)


def _step(wire: Mapping[str, Any]) -> Step:
    rows = [None if row is None else Row(*row) for row in wire["rows"]]
    calls = [
        Call(**{**call, "tensors": _tuple_or_none(call["tensors"]), "over": tuple(call["over"])})
        for call in wire["calls"]
    ]
    stepped = [
        Stepped(**{**one, "tensors": tuple(one["tensors"]), "by_value": tuple(one["by_value"])})
        for one in wire["stepped"]
    ]
    return Step(rows, wire["own"], calls, stepped)


def _tuple_or_none(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def tensor_of_wire(wire: Mapping[str, Any]) -> Tensor:
    """The inverse of `Tensor.encode` for what ranks declare of reduced gradients."""
    placements: dict[Axes, Placement] = {}
    for item in wire["placements"]:
        axes = tuple(item["axes"])
        kind: Placement
        if item["kind"] == "shard":
            kind = Shard(item["dim"])
        elif item["kind"] == "only":
            kind = Only(*item["at"])
        else:
            kind = Replicate()
        placements[axes if len(axes) > 1 else axes[0]] = kind
    order = wire.get("split_order")
    return Tensor(
        wire["name"],
        tuple(wire["shape"]),
        local_shape=_tuple_or_none(wire.get("local_shape")),
        local_offset=_tuple_or_none(wire.get("local_offset")),
        dtype=wire["dtype"],
        mesh=wire["mesh"],
        placements=placements,
        tied=wire.get("tied"),
        layer=wire.get("layer"),
        split_order=None if order is None else tuple(order),
        weight_fingerprint=wire.get("weight_fingerprint"),
    )
