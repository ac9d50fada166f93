"""The command `gradsync`: it audits or observes a training script, asks a daemon for its status or examines a node."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from ._audit._cli import add_audit, add_verdict
from ._bench._cli import add_bench
from ._client import Client, connect
from ._command_parser import add_command
from ._commit import commit
from ._doctor import add_doctor
from ._launch._spawn import find_binary
from ._observe._cli import add_observe
from ._remote import RemoteDaemon, is_remote
from ._run_report._cli import add_report
from ._version import PROTOCOL, __version__
from .errors import ConnectionFailed, GradsyncError, UsageError

__all__ = ["main", "status_main"]

_VERSION_S = 10.0
#: commands of gradsyncd that this one passes on as they are
_OF_GRADSYNCD = {
    "run": "run a command beside a private daemon, as `gradsyncd run`",
    "explain": "say what a kind of error means, and what to do",
    "trace": "write the last steps of a running job as a trace for Perfetto",
}
_OPTIONAL = ("torch", "numpy")  #: what the client uses where it is installed


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["--version"]:
        return _version()
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = ["status", *arguments]  # `python -m gradsync` without a command means this
    if arguments[0] in _OF_GRADSYNCD:
        return _pass_on(arguments)
    parser = argparse.ArgumentParser(
        prog="gradsync", description="Client of gradsyncd, the sidecar of PyTorch training. Default: status."
    )
    parser.add_argument(
        "--version", action="store_true", help="show the versions of this client and of the daemon it would start"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, help_text in _OF_GRADSYNCD.items():
        commands.add_parser(name, help=help_text, add_help=False)
    add_audit(commands.add_parser)
    add_verdict(commands.add_parser)
    add_observe(commands.add_parser)
    add_report(commands.add_parser)
    add_doctor(commands.add_parser)
    add_bench(commands.add_parser)
    status = add_command(commands.add_parser, "status", _status, help="show what a running daemon does now")
    status.add_argument(
        "--address",
        help="path of its socket, or http://HOST:PORT or https://HOST of [server] tcp (default: $GRADSYNC_ADDRESS, "
        "then the usual places)",
    )
    status.add_argument("--token-file", help="file with the token for http and https (default: $GRADSYNC_TOKEN_FILE)")
    status.add_argument("--json", action="store_true", help="the whole answer as JSON")
    status.add_argument(
        "--watch", action="store_true", help="again every second, in colour, until Ctrl-C; needs gradsync[watch]"
    )
    command: list[str] = []
    if "--" in arguments:
        where = arguments.index("--")
        arguments, command = arguments[:where], arguments[where + 1 :]
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        runs = arguments[0] in ("audit", "observe")
        hint = f"; the command comes after --: gradsync {arguments[0]} [options] -- COMMAND …" if runs else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    options.command = command
    try:
        return int(options.run(options))
    except GradsyncError as error:
        print(error, file=sys.stderr)
        return 1 if options.run is _status else 2


def _pass_on(arguments: list[str]) -> int:
    """Becomes the binary that connect(spawn=True) would start; it knows the options."""
    try:
        binary = find_binary()
        os.execv(binary, [binary, *arguments])
    except (GradsyncError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def status_main() -> int:
    """The command `gradsync-status`."""
    return main(["status", *sys.argv[1:]])


def _status(options: argparse.Namespace) -> int:
    address = options.address or os.environ.get("GRADSYNC_ADDRESS", "")
    with contextlib.ExitStack() as stack:
        daemon: RemoteDaemon | Client
        if is_remote(address):
            daemon = RemoteDaemon(address, token_file=options.token_file)
        else:
            daemon = stack.enter_context(connect(options.address, timeout=2.0))
        if options.watch:
            _watch(daemon.status)
            return 0
        status = daemon.status()
    if options.json:
        print(json.dumps(status, indent=2))
        return 0
    print(f"gradsyncd {status['version']} pid {status['pid']}: {status['state']}, up {status['uptime_s']:.0f} s")
    for job in status["jobs"]:
        sums = f", partial sums in {job['partial_sums']}" if "partial_sums" in job else ""
        print(
            f"  {job['job']}: {job['state']} ({job['reason']}), world size {job['world_size']}, "
            f"data path {job['data_path']}{sums}, "
            f"last step {job['last_step']}, {job['steps_committed']} done, {job['steps_failed']} failed"
        )
    return 0


def _watch(ask: Callable[[], dict[str, Any]]) -> None:
    try:
        from ._watch._loop import watch
    except ImportError as error:
        raise UsageError(
            f"--watch draws with rich, which is not here ({error}): pip install 'gradsync[watch]', or look with "
            "`gradsyncd status --watch`"
        ) from error
    watch(ask)


def _version() -> int:
    features = ", ".join(f"{name} {_installed(name)}" for name in _OPTIONAL)
    print(f"gradsync {__version__} (commit {commit()}, protocol {PROTOCOL}; {features})")
    try:
        binary = find_binary()
    except ConnectionFailed as error:
        print(f"no daemon: {error}")
        return 0
    print(f"daemon {binary}: {_version_of(binary)}")
    return 0


def _installed(package: str) -> str:
    """The version of a package, which is not imported, or "no"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "no"


def _version_of(binary: str) -> str:
    """What a daemon says of itself, or why it says nothing."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=_VERSION_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    if done.returncode != 0:
        return f"does not say its version (exit code {done.returncode}): {done.stderr.strip()}"
    return done.stdout.strip()
