"""Runs a training command with hooks in all its processes, beside a daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gradsync._client import Client, connect
from gradsync.errors import ConnectionFailed, UsageError

from ._hooks import VARIABLE

__all__ = ["a_daemon", "check_command", "check_writable", "injected", "signals_passed_to", "start"]

_STARTUP = Path(__file__).parent / "startup"


def check_writable(option: str, path: Path | None) -> None:
    """Raises UsageError before hours of training, not after them."""
    if path is None:
        return
    there = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"{option} {path}: it cannot be written: {error.strerror}; name a file that can") from error
    if not there:
        path.unlink()


def check_command(tool: str, command: Sequence[str]) -> None:
    """Raises UsageError where there is none."""
    if not command:
        raise UsageError(f"gradsync {tool} needs a command: gradsync {tool} -- torchrun --nproc-per-node 2 train.py")


@contextlib.contextmanager
def a_daemon(tool: str, address: str | None) -> Iterator[Client]:
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
                "spawn", f"gradsync {tool} needs a gradsyncd. {unreachable}. Starting one failed too: {error}"
            ) from error
    with client:
        yield client


def injected(
    outer: Mapping[str, str], tool: str, folder: Path, asked: Mapping[str, Any], address: str
) -> dict[str, str]:
    """The environment of a command whose processes have the hooks; `asked` is what the tool's recorder reads."""
    path = [str(_STARTUP), *filter(None, [outer.get("PYTHONPATH")])]
    return {
        **outer,
        "PYTHONPATH": os.pathsep.join(path),
        VARIABLE: json.dumps({"tool": tool, "folder": str(folder), **asked}),
        "GRADSYNC_ADDRESS": f"unix:{address}",
    }


def start(tool: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Raises UsageError where the command cannot be run."""
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"gradsync {tool}: {command[0]!r} cannot be run: {error.strerror}") from error


@contextlib.contextmanager
def signals_passed_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C in a terminal reaches the command by itself, so here it must only not end the tool first."""

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
