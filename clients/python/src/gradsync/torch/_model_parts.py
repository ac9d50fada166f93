"""What the caller of `init` or `audit` says about the model: its parts, its pipeline axis, tied parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import nn

from gradsync.errors import UsageError

from ._mesh_axes import JobMesh
from ._module_tree import clean_name

__all__ = ["pipeline_axis", "tied_ids", "trainable_parameters"]


def trainable_parameters(
    model_parts: nn.Module | Sequence[nn.Module], frozen: Collection[int] = ()
) -> dict[str, nn.Parameter]:
    """Every trainable parameter once, under its first name, and the frozen ones with the ids in `frozen`."""
    parts = [model_parts] if isinstance(model_parts, nn.Module) else list(model_parts)
    for part in parts:
        if not isinstance(part, nn.Module):
            raise UsageError(f"init() got {type(part).__name__} among its parts; give nn.Modules, not parameters")
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for number, part in enumerate(parts):
        for full_name, parameter in part.named_parameters():
            if id(parameter) in seen or not (parameter.requires_grad or id(parameter) in frozen):
                continue
            seen.add(id(parameter))
            name = clean_name(full_name)
            found[name if name not in found else f"parts.{number}.{name}"] = parameter
    return found


def pipeline_axis(pp: Any, mesh: JobMesh) -> str | None:
    if pp is None:
        return "pp" if "pp" in mesh.axes else None
    if isinstance(pp, str):
        if pp not in mesh.axes:
            raise UsageError(f"pp={pp!r}: mesh {mesh.name!r} has the axes {', '.join(mesh.axes)}")
        return pp
    dims = mesh.dims_of(pp)
    if dims is None or [len(dim) for dim in dims] not in ([0], [1]):
        raise UsageError(f"pp={pp}: it does not lie along one axis of {dict(mesh.axes)}; name the axis: pp='pp'")
    return dims[0][0] if dims[0] else None


def tied_ids(tied: Iterable[Sequence[str]]) -> dict[str, str]:
    ids: dict[str, str] = {}
    for names in tied:
        if isinstance(names, str) or len(names) < 2:
            raise UsageError(
                f"tied={names!r}: give groups of two names or more: tied=[('embed.weight', 'head.weight')]"
            )
        for name in names:
            ids[name] = names[0]
    return ids
