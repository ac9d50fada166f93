"""`gradsync bench`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

from gradsync._client import connect
from gradsync._command_parser import AddParser, add_command
from gradsync.errors import UsageError

from ._figures import Figure

__all__ = ["add_bench"]

_EPILOG = """\
It takes some ten seconds, two cores and memory: not beside a training whose speed matters. Without --address a private
daemon with the settings of this machine is measured. The exit code is 0 where every figure is within its bound, else 1;
a bound is some times what the same node needs without gradsync, in the same run.

example: gradsync bench
"""


def add_bench(add: AddParser) -> None:
    parser = add_command(
        add,
        "bench",
        _bench,
        help="measure what steps take on this node, beside the least that its memory and its sockets allow",
        description="Measures a daemon on this node, and says whether it is as fast as it should be.",
        epilog=_EPILOG,
    )
    parser.add_argument("--address", help="socket of a daemon to measure (default: a private one)")
    parser.add_argument(
        "--megabytes", type=_megabytes, default=64, metavar="N", help="gradients of a rank (default: 64)"
    )
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="rounds of each part (default: 12)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _megabytes(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1024:
        raise argparse.ArgumentTypeError(f"{count} is not from 1 to 1024")
    return count


def _bench(options: argparse.Namespace) -> int:
    try:
        from ._latency import measure_latency
        from ._memory import measure_memory
    except ImportError as error:
        raise UsageError(f"gradsync bench needs numpy, which is not here ({error}): pip install numpy") from error
    spawned = options.address is None
    with connect(options.address, spawn=spawned) as client:
        figures = [
            measure_memory(client.address, options.megabytes, options.rounds),
            measure_latency(client.address, options.rounds),
        ]
    if options.json:
        print(
            json.dumps([{**dataclasses.asdict(one), "ratio": one.ratio, "well": one.well} for one in figures], indent=2)
        )
    else:
        print("\n".join(map(_said, figures)))
        print(_verdict(figures))
    return 0 if all(figure.well for figure in figures) else 1


def _said(figure: Figure) -> str:
    said = f"{figure.what}\n      is {figure.ratio:.2f} times {figure.floor}, at most {figure.allowed:g}"
    return f"ok    {said}" if figure.well else f"slow  {said}\n      {figure.advice}"


def _verdict(figures: list[Figure]) -> str:
    load = os.getloadavg()[0]
    busy = (
        f" The load was {load:.1f}: measure again when less runs here." if load > len(os.sched_getaffinity(0)) else ""
    )
    if all(figure.well for figure in figures):
        return f"This node is as fast as it should be.{busy}"
    return f"This node is slower than it should be.{busy}"
