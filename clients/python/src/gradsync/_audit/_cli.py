"""`gradsync audit -- COMMAND`: runs the command with the audit in its ranks, and prints the verdict."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gradsync._command_parser import AddParser, add_command
from gradsync._injected._command import a_daemon, check_command, check_writable, injected, signals_passed_to, start
from gradsync._injected._model_flags import add_model_flags, model_flags
from gradsync.errors import UsageError

from ._ending import after_failure
from ._examine import all_have_ended, check_new, complete, examine, has_ended, steps_of
from ._table import as_json, as_text
from ._verdict import Verdict

__all__ = ["add_audit", "add_verdict"]

_LOOK_S = 0.5
_END_S = 15.0  # torchrun takes some seconds to tell that a rank failed
_STOP_S = 30.0
_OTHERS_S = 30.0  # for the ranks of other nodes, when the command of this node has ended well
_EXIT_CODES = """\
exit code: the command's own if it failed; else 0 when all norms agree, 1 when one differs or replicas do, 2 when
a call could not be compared or nothing could be audited.

The audit does not edit the script, and does not touch its gradients, random numbers or process groups; after the
last step torch's functions are restored. What cannot be found in the processes (a pipeline or experts by hand over
plain process groups) is given by --mesh, --pp, --ep, --sharded, --tied, or by one line in the script:
gradsync.torch.audit(model, mesh={"pp": 2, "dp": 4}, pp="pp").

example: gradsync audit --steps 5 -- torchrun --nproc-per-node 4 train.py
"""


def add_audit(add: AddParser) -> None:
    parser = add_command(
        add,
        "audit",
        _audit,
        help="check whether a training script's gradient norm is right, and if not, why",
        usage="gradsync audit [options] -- COMMAND …",
        description="Runs COMMAND and compares the gradient norm it clips by with the exact one.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--steps", type=_positive, default=5, metavar="N", help="steps to compare (default 5)")
    parser.add_argument("--stop", action="store_true", help="end the command when the steps are compared")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="for a job over several nodes: a new folder that all of them see, the same for the command of each",
    )
    add_model_flags(parser)
    _common(parser)


def add_verdict(add: AddParser) -> None:
    parser = add_command(add, "verdict", _verdict, help="judge a folder that audited ranks wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="for ranks that still write")
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the verdict there too")
    parser.add_argument("--tolerance", type=_tolerance, metavar="R", help="relative; default: from dtype and sizes")
    parser.add_argument("--address", help="socket of a daemon (default: the usual search, else a private one)")


def _audit(options: argparse.Namespace) -> int:
    check_command("audit", options.command)
    check_writable("--json", options.json)
    asked = {"steps": options.steps, **model_flags(options)}
    with a_daemon("audit", options.address) as client, _folder(options.folder) as folder:
        environment = injected(os.environ, "audit", folder, asked, client.address)
        verdict, code, stopped = _run(options, folder, environment, client.address)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(verdict), indent=2) + "\n", "utf-8")
    return verdict.exit_code if code == 0 or stopped else code


@contextlib.contextmanager
def _folder(shared: Path | None) -> Iterator[Path]:
    """Where the ranks write: a folder of this command alone, or that which the commands of all nodes have in common."""
    if shared is None:
        with tempfile.TemporaryDirectory(prefix="gradsync-audit-") as own:
            yield Path(own)
        return
    try:
        shared.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--folder {shared}: it cannot be made: {error.strerror}; name one that can") from error
    check_new(shared)
    yield shared.absolute()  # ranks may work in other folders


def _verdict(options: argparse.Namespace) -> int:
    check_writable("--json", options.json)
    _wait(lambda: complete(options.folder), options.wait)
    with a_daemon("audit", options.address) as client:
        verdict = examine(options.folder, client.address, options.tolerance)
    print(as_text(verdict), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(verdict), indent=2) + "\n", "utf-8")
    return verdict.exit_code


def _run(
    options: argparse.Namespace, folder: Path, environment: dict[str, str], address: str
) -> tuple[Verdict, int, bool]:
    """The verdict as soon as there is one, the command's exit code, and whether it was told to stop."""
    process = start("audit", options.command, environment)
    verdict, stopped, ends_by = None, False, math.inf
    with signals_passed_to(process):
        while True:
            try:
                code = process.wait(_LOOK_S if verdict is None else None)
                break
            except subprocess.TimeoutExpired:
                if not complete(folder, shared=options.folder is not None):
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
        if options.folder is not None:
            has_ended(folder)
            _wait(lambda: complete(folder, shared=True) or all_have_ended(folder), _OTHERS_S if code == 0 else 0.0)
        verdict = _told(folder, address, options, code)
    return verdict, code if code >= 0 else 128 - code, stopped


def _told(folder: Path, address: str, options: argparse.Namespace, code: int = 0) -> Verdict:
    """Prints the verdict, of a command that runs yet or ended with this code."""
    try:
        verdict = examine(folder, address, options.tolerance, shared=options.folder is not None)
        if code != 0:
            verdict = after_failure(verdict, code, folder, options.steps)
    except Exception as error:  # the command runs on, whatever is wrong with its audit
        verdict = Verdict(reason=f"an error of gradsync itself, {error!r}", advice="report it, with the command")
    print("\n" + as_text(verdict) + "\n", flush=True)
    return verdict


def _wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


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
