"""Runs one stage of a check: a command with a deadline, whose outcome becomes a JUnit file whatever happens.

    stage.py --results DIR --name NAME [--deadline SECONDS] [--cases] -- COMMAND...

`{junit}` in the command stands for the file to write. Without it the stage is a single case, passed when the command
exits 0. With `--cases` the command writes the file itself; if it ends badly without recording a failure (a crash, no
tests), a failed case is added, so that no stage can fail and leave the totals green.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path


def run(command: list[str], deadline_s: float) -> tuple[int, str]:
    """Exit code and, where the deadline ended it, a word about that. The whole process group is ended."""
    # A signal that ends this process must not leave a compiler or a test behind.
    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, lambda number, _: sys.exit(128 + number))
    # Started in the background, this process ignores Ctrl-C, and its children would with it; tests send it to theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    try:
        return child.wait(deadline_s), ""
    except subprocess.TimeoutExpired:
        return 124, f"not done after {deadline_s:.0f} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def counts(path: Path) -> tuple[int, int]:
    """Cases and failed cases in a JUnit file; (0, 0) when it is missing or damaged."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return 0, 0
    cases = list(root.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), len(failed)


def add_case(path: Path, name: str, seconds: float, failure: str | None) -> None:
    try:
        suite = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        suite = ET.Element("testsuite", name=name)
    parent = suite if suite.tag == "testsuite" else ET.SubElement(suite, "testsuite", name=name)
    case = ET.SubElement(parent, "testcase", classname="stage", name=name, time=f"{seconds:.3f}")
    if failure is not None:
        ET.SubElement(case, "failure", message=failure)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs one stage of a check.")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds (default 600)")
    parser.add_argument("--cases", action="store_true", help="the command writes {junit} itself")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    junit = (options.results / f"{options.name}.xml").absolute()
    junit.parent.mkdir(parents=True, exist_ok=True)
    junit.unlink(missing_ok=True)
    print(f"--- {options.name}", flush=True)
    begin = time.monotonic()
    code, reason = run([part.replace("{junit}", str(junit)) for part in options.command], options.deadline)
    seconds = time.monotonic() - begin

    reason = reason or f"exit code {code}"
    if not options.cases:
        add_case(junit, options.name, seconds, reason if code else None)
    else:
        cases, failed = counts(junit)
        if not cases and not code:
            code, reason = 1, "no tests"
        if code and not failed:
            add_case(junit, options.name, seconds, reason)
    print(f"--- {options.name}: {'ok' if not code else 'FAILED (' + reason + ')'}, {seconds:.0f} s", flush=True)
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
