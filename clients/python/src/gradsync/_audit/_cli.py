"""`gradsync audit -- COMMAND`: runs the command with the audit in its ranks, and prints the verdict."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from gradsync._client import Client, connect
from gradsync.errors import ConnectionFailed, UsageError

from ._ending import after_failure
from ._examine import complete, examine, steps_of
from ._hooks import VARIABLE
from ._table import as_json, as_text
from ._verdict import Verdict

__all__ = ["add_audit", "add_verdict"]

_LOOK_S = 0.5
_END_S = 15.0  # torchrun takes some seconds to tell that a rank failed
_STOP_S = 30.0
_STARTUP = Path(__file__).parent / "startup"
_EXIT_CODES = """\
exit code: the command's own if it failed; else 0 when all norms agree, 1 when one differs or replicas do, 2 when
a call could not be compared or nothing could be audited.

The audit does not edit the script, and does not touch its gradients, random numbers or process groups; after the
last step torch's functions are restored. What cannot be found in the processes (a pipeline or experts by hand over
plain process groups) is given by --mesh, --pp, --ep, --tied, or by one line in the script:
gradsync.torch.audit(model, mesh={"pp": 2, "dp": 4}, pp="pp").

example: gradsync audit --steps 5 -- torchrun --nproc-per-node 4 train.py
"""
AddParser = Callable[..., argparse.ArgumentParser]


def add_audit(add: AddParser) -> None:
    parser = add(
        "audit",
        help="check whether a training script's gradient norm is right, and if not, why",
        usage="gradsync audit [options] -- COMMAND …",
        description="Runs COMMAND and compares the gradient norm it clips by with the exact one.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=_positive, default=5, metavar="N", help="steps to compare (default 5)")
    parser.add_argument("--stop", action="store_true", help="end the command when the steps are compared")
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
        "--tied", action="append", type=_names, default=[], metavar="NAME,NAME", help="one weight on several stages"
    )
    _common(parser)
    parser.set_defaults(run=_audit)


def add_verdict(add: AddParser) -> None:
    parser = add("verdict", help="judge a folder that audited ranks wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="for ranks that still write")
    _common(parser)
    parser.set_defaults(run=_verdict)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the verdict there too")
    parser.add_argument("--tolerance", type=_tolerance, metavar="R", help="relative; default: from dtype and sizes")
    parser.add_argument("--address", help="socket of a daemon (default: the usual search, else a private one)")


def _audit(options: argparse.Namespace) -> int:
    if not options.command:
        raise UsageError("gradsync audit needs a command: gradsync audit -- torchrun --nproc-per-node 2 train.py")
    _check_writable(options.json)
    with _daemon(options.address) as client, tempfile.TemporaryDirectory(prefix="gradsync-audit-") as folder:
        environment = _environment(os.environ, Path(folder), options, client.address)
        verdict, code, stopped = _run(options, Path(folder), environment, client.address)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(verdict), indent=2) + "\n", "utf-8")
    return verdict.exit_code if code == 0 or stopped else code


def _verdict(options: argparse.Namespace) -> int:
    _check_writable(options.json)
    end = time.monotonic() + options.wait
    while not complete(options.folder) and time.monotonic() < end:
        time.sleep(0.1)
    with _daemon(options.address) as client:
        verdict = examine(options.folder, client.address, options.tolerance)
    print(as_text(verdict), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(verdict), indent=2) + "\n", "utf-8")
    return verdict.exit_code


def _check_writable(path: Path | None) -> None:
    """Raises UsageError before hours of training, not after them."""
    if path is None:
        return
    there = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"--json {path}: it cannot be written: {error.strerror}; name a file that can") from error
    if not there:
        path.unlink()


@contextlib.contextmanager
def _daemon(address: str | None) -> Iterator[Client]:
    """Connects to a running daemon, else to a private one.

    Raises:
        ConnectionFailed: no daemon is at the given address; or none runs, and a private one cannot be started.
    """
    try:
        client = connect(address, timeout=5.0)
    except ConnectionFailed as unreachable:
        if address is not None:
            raise
        try:
            client = connect(spawn=True)
        except ConnectionFailed as error:
            raise ConnectionFailed(
                "spawn", f"gradsync audit needs a gradsyncd. {unreachable}. Starting one failed too: {error}"
            ) from error
    with client:
        yield client


def _environment(outer: Mapping[str, str], folder: Path, options: argparse.Namespace, address: str) -> dict[str, str]:
    asked = {
        "folder": str(folder),
        "steps": options.steps,
        "meshes": dict(options.mesh),
        "pp": options.pp,
        "ep": options.ep,
        "tied": options.tied,
    }
    path = [str(_STARTUP), *filter(None, [outer.get("PYTHONPATH")])]
    return {
        **outer,
        "PYTHONPATH": os.pathsep.join(path),
        VARIABLE: json.dumps(asked),
        "GRADSYNC_ADDRESS": f"unix:{address}",
    }


def _run(
    options: argparse.Namespace, folder: Path, environment: dict[str, str], address: str
) -> tuple[Verdict, int, bool]:
    """The verdict as soon as there is one, the command's exit code, and whether it was told to stop."""
    try:
        process = subprocess.Popen(options.command, env=environment)
    except OSError as error:
        raise UsageError(f"gradsync audit: {options.command[0]!r} cannot be run: {error.strerror}") from error
    verdict, stopped, ends_by = None, False, math.inf
    with _signals_passed_to(process):
        while True:
            try:
                code = process.wait(_LOOK_S if verdict is None else None)
                break
            except subprocess.TimeoutExpired:
                if not complete(folder):
                    continue
                if steps_of(folder) < options.steps and ends_by == math.inf:
                    ends_by = time.monotonic() + _END_S  # Ranks that end early end the command; with which code?
                if ends_by == math.inf or time.monotonic() >= ends_by:
                    verdict = _told(folder, address, options)
                    if options.stop:
                        stopped = True
                        code = _stop(process)
                        break
    if verdict is None:
        verdict = _told(folder, address, options, code)
    return verdict, code if code >= 0 else 128 - code, stopped


def _told(folder: Path, address: str, options: argparse.Namespace, code: int = 0) -> Verdict:
    """Prints the verdict, of a command that runs yet or ended with this code."""
    try:
        verdict = examine(folder, address, options.tolerance)
        if code != 0:
            verdict = after_failure(verdict, code, folder, options.steps)
    except Exception as error:  # the command runs on, whatever is wrong with its audit
        verdict = Verdict(reason=f"an error of gradsync itself, {error!r}", advice="report it, with the command")
    print("\n" + as_text(verdict) + "\n", flush=True)
    return verdict


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@contextlib.contextmanager
def _signals_passed_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C in a terminal reaches the command by itself, so here it must only not end the audit first."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    def wait_for_it(number: int, frame: FrameType | None) -> None:
        if process.poll() is None and not (sys.stdin and sys.stdin.isatty()):
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, wait_for_it)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of steps; give 1 or more")
    return number


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no relative tolerance; give 0 or more, less than 1")
    return value


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


def _names(text: str) -> list[str]:
    names = text.split(",")
    if len(names) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write two names or more: embed.weight,head.weight")
    return names
