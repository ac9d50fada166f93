"""ADR 0008 played through: declarations are merged by key, boxes proved to tile, and a program of collectives run.

Written from the decision, not from the product, with chunk arithmetic instead of torch.chunk: what it answers is
compared with `expected`, which knows nothing of either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext

from .declare import Declared
from .exact import _CONTEXT, root
from .expected import Partition, partition, way
from .rows import Row
from .world import Logical, Rule, World, flat_index, flat_size

Box = tuple[tuple[int, int], ...]  # per dim (offset, extent)


class Refused(Exception):
    """A declaration that cannot be right: which tensor, which field, why."""

    def __init__(self, tensor: str, field_name: str, why: str) -> None:
        super().__init__(f"{tensor}.{field_name}: {why}")
        self.tensor, self.field = tensor, field_name


@dataclass(slots=True)
class Merged:
    first: Declared
    rows: dict[int, int] = field(default_factory=dict)  # rank → row of its table
    boxes: dict[int, Box] = field(default_factory=dict)
    replication: int = 1

    @property
    def logical(self) -> Logical:
        d = self.first
        return Logical(d.name, d.shape, d.rules, mesh=d.mesh, split_order=d.split_order)


def key_of(tensor: Declared) -> object:
    """Normalised: the order of coordinates and of placements says nothing."""
    return tensor.name, frozenset((rule.axes, tuple(sorted(rule.at))) for rule in tensor.rules if rule.kind == "only")


def check_tensor(world: World, tensor: Declared) -> None:
    mesh = world.meshes.get(tensor.mesh)
    if mesh is None:
        raise Refused(tensor.name, "mesh", "unknown")
    placed = [axis for rule in tensor.rules for axis in rule.axes]
    for axis in placed:
        if axis not in mesh or placed.count(axis) > 1:
            raise Refused(tensor.name, "placements", f"axis {axis} unknown or placed twice")
    if any(size > 1 and axis not in placed for axis, size in mesh.items()):
        raise Refused(tensor.name, "placements", "an axis has no placement")
    if any(rule.kind == "partial" for rule in tensor.rules):
        raise Refused(tensor.name, "placements", "nobody reduced it")
    if tensor.divisor is not None:
        raise Refused(tensor.name, "divisor", "nobody divides")


def expected_box(world: World, tensor: Declared, rank: int) -> Box:
    mesh = world.meshes[tensor.mesh]
    order = list(tensor.split_order or mesh)
    box = [(0, extent) for extent in tensor.shape]
    for rule in sorted((r for r in tensor.rules if r.kind == "shard"), key=lambda r: order.index(r.axes[0])):
        offset, extent = box[rule.dim]
        size = -(-extent // flat_size(mesh, rule.axes))
        start = min(size * flat_index(mesh, rule.axes, rank), extent)
        box[rule.dim] = (offset + start, min(size, extent - start))
    return tuple(box)


def volume(box: Box) -> int:
    return math.prod(extent for _, extent in box)


def overlap(a: Box, b: Box) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(max(i, j) < min(i + m, j + n) for (i, m), (j, n) in pairs)


def merge(world: World, by_rank: Sequence[Sequence[Declared]]) -> list[Merged]:
    merged: dict[object, Merged] = {}
    for rank, tensors in enumerate(by_rank):
        for row, tensor in enumerate(tensors):
            check_tensor(world, tensor)
            entry = merged.setdefault(key_of(tensor), Merged(tensor))
            if rank in entry.rows:
                raise Refused(tensor.name, "name", f"declared twice on rank {rank}")
            for name in ("shape", "dtype", "mesh", "rules", "split_order", "tied", "clip_group", "layer"):
                if getattr(tensor, name) != getattr(entry.first, name):
                    raise Refused(tensor.name, name, f"differs on rank {rank}")
            entry.rows[rank] = row
            if tensor.local_offset is not None:
                entry.boxes[rank] = tuple(zip(tensor.local_offset, tensor.local_shape, strict=True))
            else:
                entry.boxes[rank] = expected_box(world, tensor, rank)
                if tuple(extent for _, extent in entry.boxes[rank]) != tensor.local_shape:
                    raise Refused(tensor.name, "local_shape", f"not the chunk of rank {rank}")
    for entry in merged.values():
        check_boxes(world, entry)
    check_tied(list(merged.values()))
    return list(merged.values())


def check_boxes(world: World, entry: Merged) -> None:
    tensor, mesh = entry.first, world.meshes[entry.first.mesh]
    admitted = [r for r in range(world.world_size) if all(_admits(mesh, rule, r) for rule in tensor.rules)]
    if admitted != sorted(entry.rows):
        raise Refused(tensor.name, "placements", f"declared on {sorted(entry.rows)}, exists on {admitted}")
    splitting = [rule for rule in tensor.rules if rule.kind == "shard"]
    pieces: dict[tuple[int, ...], set[Box | None]] = {}
    for rank, box in entry.boxes.items():
        if any(o < 0 or o + e > n for (o, e), n in zip(box, tensor.shape, strict=True)):
            raise Refused(tensor.name, "local_offset", f"outside the shape on rank {rank}")
        place = tuple(flat_index(mesh, rule.axes, rank) for rule in splitting)
        pieces.setdefault(place, set()).add(box if volume(box) else None)
    if any(len(boxes) > 1 for boxes in pieces.values()):
        raise Refused(tensor.name, "local_shape", "ranks that replicate it hold different boxes")
    boxes = [box for found in pieces.values() for box in found if box is not None]
    if any(overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i]):
        raise Refused(tensor.name, "local_offset", "shards overlap")
    if sum(map(volume, boxes)) != math.prod(tensor.shape):
        raise Refused(tensor.name, "local_shape", "shards leave a gap")
    entry.replication = len(entry.rows) // len(pieces)
    assert sum(map(volume, entry.boxes.values())) == math.prod(tensor.shape) * entry.replication


def check_tied(merged: Sequence[Merged]) -> None:
    first: dict[str, Declared] = {}
    for entry in merged:
        if entry.first.tied is not None:
            other = first.setdefault(entry.first.tied, entry.first)
            for name in ("shape", "dtype", "clip_group"):
                if getattr(other, name) != getattr(entry.first, name):
                    raise Refused(entry.first.name, name, f"differs from its tied copy {other.name}")


def _admits(mesh: object, rule: Rule, rank: int) -> bool:
    return rule.kind != "only" or flat_index(mesh, rule.axes, rank) in rule.at  # type: ignore[arg-type]


@dataclass(slots=True)
class Cell:
    """`rough` is a plain double: any difference between the ranks' orders of addition shows in its bits."""

    total: Decimal = Decimal(0)
    rough: float = 0.0
    maximum: float = 0.0
    nonfinite: int = 0
    nan: int = 0

    def add(self, other: Cell) -> None:
        with localcontext(_CONTEXT):
            self.total += other.total
        self.rough += other.rough
        self.maximum = max(self.maximum, other.maximum)
        self.nonfinite += other.nonfinite
        self.nan += other.nan

    def norm(self, p: float) -> float:
        if self.nonfinite:
            return math.nan if self.nan else math.inf
        return self.maximum if math.isinf(p) else root(self.total, p)


def cell_of(row: Row, p: float) -> Cell:
    with localcontext(_CONTEXT):
        power = Decimal(1) if math.isinf(p) else Decimal(row.scale) ** Decimal(p)
        total = (Decimal(row.power_sum) + Decimal(row.power_sum_low)) * power
    return Cell(total, row.power_sum, row.maximum, row.nonfinite, row.nan)


@dataclass(slots=True)
class Outcome:
    by_rank: list[dict[str, float]]  # "" all, "group:x", "layer:x"
    rough: list[float]
    collectives: list[tuple[int, Partition, int]]
    counted_elements: int
    divergence: dict[str, list[int]]  # copies of a box that differ from the lowest one
    missing: dict[str, list[int]]  # boxes without a gradient on any holder, where others of the tensor have one
    nonfinite: dict[str, int]


def counting_holder(world: World, entry: Merged, rank: int) -> bool:
    """Where `only` names several coordinates the lowest counts."""
    mesh = world.meshes[entry.first.mesh]
    for rule in entry.first.rules:
        everywhere = len(rule.at) == flat_size(mesh, rule.axes)
        if rule.kind == "only" and not everywhere and flat_index(mesh, rule.axes, rank) != min(rule.at):
            return False
    return True


def run(world: World, merged: Sequence[Merged], tables: Sequence[Sequence[Row]]) -> Outcome:
    p, ranks = world.norm_type, range(world.world_size)
    seen: set[str] = set()
    poison: dict[str, Cell] = {}  # of the clip set: a NaN counts wherever it is held, not only where it is summed
    walks: set[tuple[tuple[int, Partition], ...]] = set()
    names = ["", *(f"group:{g}" for g in world.groups), *(f"layer:{n}" for n in world.layers)]
    sums: list[dict[object, dict[str, Cell]]] = [{} for _ in ranks]
    counted, divergence, missing, nonfinite = 0, {}, {}, {}
    for entry in merged:
        tensor = entry.first
        rows = {rank: tables[rank][row] for rank, row in entry.rows.items() if volume(entry.boxes[rank])}
        if differing := differing_ranks(entry, rows):
            divergence[tensor.name] = differing
        present = {entry.boxes[rank] for rank, row in rows.items() if row.stamp}
        if gone := [rank for rank in rows if present and entry.boxes[rank] not in present]:
            missing[tensor.name] = gone
        if bad := worst(entry, rows, "nonfinite"):
            nonfinite[tensor.name] = bad
            for name in ("", f"group:{tensor.clip_group}", f"layer:{tensor.layer}"):
                poison.setdefault(name, Cell()).add(Cell(nonfinite=bad, nan=worst(entry, rows, "nan")))
        if tensor.tied is not None and tensor.tied in seen:
            continue
        seen |= {tensor.tied} if tensor.tied is not None else set()
        counted += sum(
            {entry.boxes[rank]: volume(entry.boxes[rank]) for rank, row in rows.items() if row.stamp}.values()
        )
        walk = way(world, entry.logical)
        walks |= {walk[k:] for k in range(len(walk))}
        for rank, row in rows.items():
            if row.stamp and counting_holder(world, entry, rank):
                for name in ("", f"group:{tensor.clip_group}", f"layer:{tensor.layer}"):
                    if name in names:
                        sums[rank].setdefault(walk, {}).setdefault(name, Cell()).add(cell_of(row, p))
    order = sorted({walk[0] for walk in walks})
    done = []
    for level, groups in order:
        through = sorted(walk for walk in walks if walk[0] == (level, groups))
        done.append((level, groups, len(through)))
        for walk in through:
            for group in groups:
                for name in names:
                    result = Cell()
                    for rank in group:
                        result.add(sums[rank].get(walk, {}).get(name, Cell()))
                    for rank in group:
                        sums[rank].setdefault(walk[1:], {}).setdefault(name, Cell()).add(result)
    results = [sums[rank].get((), {}) for rank in ranks]
    return Outcome(
        by_rank=[
            {name: (poison[name] if name in poison else cells.get(name, Cell())).norm(p) for name in names}
            for cells in results
        ],
        rough=[cells.get("", Cell()).rough for cells in results],
        collectives=done,
        counted_elements=counted,
        divergence=divergence,
        missing=missing,
        nonfinite=nonfinite,
    )


def worst(entry: Merged, rows: dict[int, Row], name: str) -> int:
    """A count of the whole tensor: of each box the holder with most."""
    counts: dict[Box, int] = {}
    for rank, row in rows.items():
        counts[entry.boxes[rank]] = max(counts.get(entry.boxes[rank], 0), getattr(row, name))
    return sum(counts.values())


def differing_ranks(entry: Merged, rows: dict[int, Row]) -> list[int]:
    """The holders whose row differs from that of the lowest holder of the same box."""
    first: dict[Box, Row] = {}
    return [rank for rank, row in sorted(rows.items()) if row != first.setdefault(entry.boxes[rank], row)]


__all__ = ["Merged", "Outcome", "Refused", "merge", "partition", "run"]
