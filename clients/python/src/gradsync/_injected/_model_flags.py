"""What a caller says about meshes and placements that cannot be found in the processes."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_model_flags", "model_flags"]


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pp", metavar="AXIS", help='axis whose coordinates hold different stages (default "pp")')
    parser.add_argument(
        "--mesh",
        action="append",
        type=_mesh,
        default=[],
        metavar="[NAME:]AXIS=SIZE,…",
        help="a mesh over all ranks, last axis fastest; default: those of the DTensors. May be given several times",
    )
    parser.add_argument(
        "--ep",
        action="append",
        type=_experts,
        default=[],
        metavar="PATTERN:slice|own[:AXIS]",
        help="parameters that differ along an expert axis without being DTensors, as gradsync.torch.Experts",
    )
    parser.add_argument(
        "--sharded",
        action="append",
        type=_sharded,
        default=[],
        metavar="PATTERN:DIM:AXIS",
        help="parameters that the script cuts by hand along an axis, as gradsync.torch.Sharded",
    )
    parser.add_argument(
        "--tied", action="append", type=_names, default=[], metavar="NAME,NAME", help="one weight on several stages"
    )


def model_flags(options: argparse.Namespace) -> dict[str, Any]:
    """As `gradsync.torch._audit._model.Hints.of` reads them."""
    return {
        "meshes": dict(options.mesh),
        "pp": options.pp,
        "ep": options.ep,
        "sharded": options.sharded,
        "tied": options.tied,
    }


def _mesh(text: str) -> tuple[str, dict[str, int]]:
    name, colon, axes = text.rpartition(":")
    try:
        pairs = [axis.split("=") for axis in axes.split(",")]
        sizes = {axis: int(size) for axis, size in pairs}
        if len(sizes) < len(pairs) or not all(axis and size > 0 for axis, size in sizes.items()):
            raise ValueError
        return name if colon else "mesh", sizes
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no mesh; write pp=2,dp=4 or dense:pp=2,dp=4, sizes from 1"
        ) from None


def _experts(text: str) -> list[Any]:
    names, held, *axis = text.split(":")[:3] if ":" in text else (text, "")
    if held not in ("slice", "own"):
        raise argparse.ArgumentTypeError(f"{text!r}: write '*.experts.*:slice' or '*.experts.*:own', then :AXIS")
    return [names, held, axis[0] if axis else "ep"]


def _sharded(text: str) -> list[Any]:
    names, *cut = text.rsplit(":", 2)
    if len(cut) < 2 or not names or not cut[0].isdecimal() or not cut[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: write '*.w1:0:tp', which is PATTERN:DIM:AXIS, DIM from 0")
    return [names, int(cut[0]), cut[1]]


def _names(text: str) -> list[str]:
    names = text.split(",")
    if len(names) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write two names or more: embed.weight,head.weight")
    return names
