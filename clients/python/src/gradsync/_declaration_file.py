"""Declarations of all ranks as JSON lines, for `gradsyncd plan check`: a head, then one line per rank."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ._clip import Clip
from ._options import encode_options
from ._renamed import renamed
from ._tensor import Mesh, Tensor
from ._wire import dump

__all__ = ["save_rank", "write_declaration"]

_FORMAT = 1


@renamed(mode="formula")
def write_declaration(
    path: str | os.PathLike[str],
    meshes: Mapping[str, Mapping[str, int] | Mesh],
    ranks: Sequence[Sequence[Tensor]],
    *,
    norm_type: float = 2.0,
    clip: Clip | Mapping[str, Clip] | None = None,
    formula: Literal["strict", "torch"] = "strict",
) -> None:
    """Writes what `ranks[r]` would declare on data path "stats", for `gradsyncd plan check`; nothing has to run.

    Raises:
        UsageError: the arguments contradict each other.
    """
    named = {name: mesh if isinstance(mesh, Mesh) else Mesh(mesh) for name, mesh in meshes.items()}
    only_mesh = next(iter(named)) if len(named) == 1 else None
    lines = [_head(len(ranks), named, encode_options("stats", 1, norm_type, clip, formula))]
    lines += [_line(rank, [t.encode(only_mesh) for t in tensors]) for rank, tensors in enumerate(ranks)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def save_rank(
    path: Path,
    world_size: int,
    meshes: Mapping[str, Mesh],
    options: Mapping[str, Any],
    rank: int,
    tensors: Sequence[Mapping[str, Any]],
) -> None:
    """Puts this rank's line into the file; lines of an earlier declaration with another head go."""
    head = _head(world_size, meshes, options)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ranks of one machine save at the same time; closing unlocks
        file.seek(0)
        old = file.read().splitlines()
        lines = {json.loads(line)["rank"]: line for line in old[1:]} if old[:1] == [head] else {}
        lines[rank] = _line(rank, tensors)
        file.truncate(0)
        file.write("\n".join([head, *(lines[number] for number in sorted(lines))]) + "\n")


def _head(world_size: int, meshes: Mapping[str, Mesh], options: Mapping[str, Any]) -> str:
    encoded = [mesh.encode(name) for name, mesh in meshes.items()]
    return dump(
        {"gradsync_declaration": _FORMAT, "world_size": world_size, "meshes": encoded, "options": dict(options)}
    )


def _line(rank: int, tensors: Sequence[Mapping[str, Any]]) -> str:
    return dump({"rank": rank, "tensors": list(tensors)})
