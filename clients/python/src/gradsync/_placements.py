"""What one mesh axis does to a tensor. Plain values; `encode` is their form on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import UsageError

__all__ = ["Axes", "Only", "Partial", "PartialTo", "Placement", "Placements", "Replicate", "Shard", "encode_placements"]


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank of the axis holds the same values."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The axis splits dimension `dim` the way torch.chunk does."""

    dim: int

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int) or self.dim < 0:
            raise UsageError(f"Shard(dim={self.dim!r}): dim is an index of the logical shape; give an int of 0 or more")


@dataclass(frozen=True, slots=True, init=False)
class Only:
    """The tensor exists at these coordinates of the axis alone, like a layer of one pipeline stage."""

    at: tuple[int, ...]

    def __init__(self, *at: int) -> None:
        if not at or any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in at):
            raise UsageError(f"Only{at!r}: give at least one coordinate, each an int of 0 or more")
        object.__setattr__(self, "at", tuple(at))


@dataclass(frozen=True, slots=True)
class PartialTo:
    """Unreduced before sync, `to` after it; written `Partial("mean") >> Replicate()`."""

    op: Literal["sum", "mean"]
    to: Replicate | Shard


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank of the axis holds a summand; `>>` says what is left after sync."""

    op: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        if self.op not in ("sum", "mean"):
            raise UsageError(f"Partial({self.op!r}): op is 'sum' or 'mean'; nothing is divided by default")

    def __rshift__(self, to: Replicate | Shard) -> PartialTo:
        if not isinstance(to, (Replicate, Shard)):
            raise UsageError(f"Partial({self.op!r}) >> {to!r}: the right side is Replicate() or Shard(dim)")
        return PartialTo(self.op, to)


Placement = Replicate | Shard | Only | PartialTo
Axes = str | tuple[str, ...]
Placements = Mapping[str, Placement] | Mapping[tuple[str, ...], Placement] | Mapping[Axes, Placement]


def _encode(placement: Placement) -> dict[str, Any]:
    if isinstance(placement, Replicate):
        return {"kind": "replicate"}
    if isinstance(placement, Shard):
        return {"kind": "shard", "dim": placement.dim}
    if isinstance(placement, Only):
        return {"kind": "only", "at": list(placement.at)}
    return {"kind": "partial", "op": placement.op, "to": _encode(placement.to)}


def encode_placements(placements: Placements) -> list[dict[str, Any]]:
    """The wire form, in the order given."""
    return [
        {"axes": [axes] if isinstance(axes, str) else list(axes), **_encode(placement)}
        for axes, placement in placements.items()
    ]


def check_placement(where: str, axes: object, placement: object) -> None:
    """Raises UsageError unless `axes: placement` is an entry of `Tensor.placements`."""
    names = (axes,) if isinstance(axes, str) else axes
    if not isinstance(names, tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{where}: key {axes!r}: give an axis name, or a tuple of names taken as one flattened axis")
    if isinstance(placement, Partial):
        raise UsageError(
            f"{where}[{axes!r}]: Partial({placement.op!r}) does not say what is left after sync; "
            f"write Partial({placement.op!r}) >> Replicate() or Partial({placement.op!r}) >> Shard(dim)"
        )
    if not isinstance(placement, (Replicate, Shard, Only, PartialTo)):
        raise UsageError(
            f"{where}[{axes!r}]: {placement!r} is not a placement; "
            "use Replicate(), Shard(dim), Only(i, …) or Partial(op) >> …"
        )
