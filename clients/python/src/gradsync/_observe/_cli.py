"""`gradsync observe -- COMMAND`: runs the command with mode `observe` in its ranks, and prints a summary at the end."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from gradsync._command_parser import AddParser, add_command
from gradsync._injected._command import a_daemon, check_command, check_writable, injected, signals_passed_to, start
from gradsync._injected._ending import first_failure, how_it_ended
from gradsync._injected._model_flags import add_model_flags, model_flags
from gradsync._wire import plain

from ._summary import Summary, as_json, as_text
from ._tally import read_tallies

__all__ = ["add_observe"]

_EPILOG = """\
While it runs, a warning on stderr says when something begins to be wrong and when it is over: a norm that differs
from the exact one, NaN or infinity (tensor and rank), copies that differ, gradients that only some ranks have,
spikes. At the end a summary is printed.

exit code: the command's own if it failed; else 0, or with --strict 1 when something was found and 2 when nothing was
observed.

No line of the script changes, and no bit of its numbers: each clip call of torch is a step. A script that calls
gradsync.torch.init is observed by that line. A dead daemon costs a step 80 ms, once.

example: gradsync observe --jsonl run.jsonl -- torchrun --nproc-per-node 4 train.py
"""


def add_observe(add: AddParser) -> None:
    parser = add_command(
        add,
        "observe",
        _observe,
        help="observe a whole training run: exact norms beside the script's, and what goes wrong, when and where",
        usage="gradsync observe [options] -- COMMAND …",
        description="Runs COMMAND and compares the gradient norm of every step with the exact one.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--jsonl",
        metavar="FILE",
        type=Path,
        help="append a line per step: step, norm, theirs, relative_difference, findings (default: none is kept)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the summary there too")
    parser.add_argument("--strict", action="store_true", help="exit code 1 or 2 where the summary is not all well")
    add_model_flags(parser)
    parser.add_argument("--address", help="socket of a daemon (default: the usual search, else a private one)")
    parser.add_argument(
        "--patience",
        type=_seconds,
        metavar="SECONDS",
        help="how long a daemon that does not answer may hold a step up, once (default 0.08)",
    )


def _observe(options: argparse.Namespace) -> int:
    check_command("observe", options.command)
    check_writable("--jsonl", options.jsonl)
    check_writable("--json", options.json)
    lines = None if options.jsonl is None else str(options.jsonl.absolute())  # ranks may work in other folders
    asked = {"jsonl": lines, "patience_s": options.patience, **model_flags(options)}
    with (
        a_daemon("observe", options.address) as client,
        tempfile.TemporaryDirectory(prefix="gradsync-observe-", ignore_cleanup_errors=True) as folder,
    ):
        environment = injected(os.environ, "observe", Path(folder), asked, client.address)
        process = start("observe", options.command, environment)
        with signals_passed_to(process):
            code = process.wait()
        summary = _summary(Path(folder), code, lines)
    print("\n" + as_text(summary) + "\n", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(plain(as_json(summary)), indent=2) + "\n", "utf-8")
    if code != 0:
        return code if code > 0 else 128 - code
    return summary.exit_code if options.strict else 0


def _summary(folder: Path, code: int, lines: str | None) -> Summary:
    ended = None
    if code != 0:
        failed = first_failure(folder)
        ended = how_it_ended(code) + ("; its output says where" if failed is None else f": {failed}")
    return Summary(read_tallies(folder), ended, lines)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is no time to wait; give seconds from 0 to 3600")
    return value
