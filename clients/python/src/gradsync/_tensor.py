"""Tensors and meshes as a rank declares them: frozen values, checked when made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._placements import Placements, check_placement, encode_placements
from ._wire import encode_number
from .errors import UsageError

__all__ = ["ARENA_ALIGNMENT", "ITEM_BYTES", "Mesh", "Tensor"]

ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
ARENA_ALIGNMENT = 64


def _dims(where: str, dims: Sequence[int]) -> tuple[int, ...]:
    try:
        result = tuple(int(dim) for dim in dims)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {dims!r} is not a sequence of ints") from None
    if any(dim < 0 for dim in result):
        raise UsageError(f"{where}: {result} has a negative entry; give sizes of 0 or more")
    return result


@dataclass(frozen=True, slots=True)
class Tensor:
    """One logical gradient and what this rank holds of it; a tuple of axes as a placement key is one flattened axis.

    Raises:
        UsageError: a field contradicts itself.
    """

    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...] | None = field(default=None, kw_only=True)
    local_offset: tuple[int, ...] | None = field(default=None, kw_only=True)
    dtype: str = field(default="float32", kw_only=True)
    mesh: str | None = field(default=None, kw_only=True)
    placements: Placements = field(default_factory=dict, kw_only=True)
    divisor: float | None = field(default=None, kw_only=True)
    tied: str | None = field(default=None, kw_only=True)
    clip_group: str = field(default="all", kw_only=True)
    layer: str | None = field(default=None, kw_only=True)
    split_order: tuple[str, ...] | None = field(default=None, kw_only=True)
    weight_fingerprint: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        where = f"Tensor({self.name!r})"
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"{where}: the name is a non-empty text")
        put = object.__setattr__
        put(self, "shape", _dims(f"{where}.shape", self.shape))
        if self.local_shape is not None:
            put(self, "local_shape", _dims(f"{where}.local_shape", self.local_shape))
        if self.local_offset is not None:
            put(self, "local_offset", _dims(f"{where}.local_offset", self.local_offset))
        if self.split_order is not None:
            put(self, "split_order", tuple(self.split_order))
        if self.dtype not in ITEM_BYTES:
            raise UsageError(f"{where}.dtype: {self.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
        for axes, placement in self.placements.items():
            check_placement(f"{where}.placements", axes, placement)

    @property
    def held_shape(self) -> tuple[int, ...]:
        """What this rank holds before sync: `local_shape`, or else `shape`."""
        return self.shape if self.local_shape is None else self.local_shape

    @property
    def nbytes(self) -> int:
        """Bytes this rank holds before sync."""
        return math.prod(self.held_shape) * ITEM_BYTES[self.dtype]

    def encode(self, only_mesh: str | None) -> dict[str, Any]:
        """The wire form; `only_mesh` is the mesh of a tensor that names none."""
        mesh = self.mesh if self.mesh is not None else only_mesh
        if mesh is None:
            raise UsageError(f"Tensor({self.name!r}): the job has several meshes; say mesh=…")
        wire: dict[str, Any] = {"name": self.name, "shape": list(self.shape)}
        if self.local_shape is not None:
            wire["local_shape"] = list(self.local_shape)
        if self.local_offset is not None:
            wire["local_offset"] = list(self.local_offset)
        wire |= {"dtype": self.dtype, "mesh": mesh, "placements": encode_placements(self.placements)}
        if self.divisor is not None:
            wire["divisor"] = encode_number(self.divisor)
        if self.tied is not None:
            wire["tied"] = self.tied
        if self.clip_group != "all":
            wire["clip_group"] = self.clip_group
        if self.layer is not None:
            wire["layer"] = self.layer
        if self.split_order is not None:
            wire["split_order"] = list(self.split_order)
        if self.weight_fingerprint is not None:
            wire["weight_fingerprint"] = self.weight_fingerprint
        return wire


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes over all ranks, row-major, last axis fastest; `sync_order` names the first stage first."""

    axes: Mapping[str, int]
    sync_order: tuple[str, ...] | None = field(default=None, kw_only=True)

    def encode(self, name: str) -> dict[str, Any]:
        """The wire form."""
        wire: dict[str, Any] = {
            "name": name,
            "axes": [{"name": axis, "size": int(size)} for axis, size in self.axes.items()],
        }
        if self.sync_order is not None:
            wire["sync_order"] = list(self.sync_order)
        return wire
