"""Runs one stage of a check: a command with a deadline, whose outcome becomes a JUnit file whatever happens.

    stage.py --results DIR --name NAME [--deadline SECONDS] [--if-time] [--cases [--again ARGUMENT]] -- COMMAND...

`{junit}` in the command stands for the file to write. Without it the stage is a single case, passed when the command
exits 0. With `--cases` the command writes the file itself; if it ends badly without recording a failure (a crash, no
tests), a failed case is added, so that no stage can fail and leave the totals green.

With `--again` the command is run once more with that argument, which makes it run only what failed. A case that passes
then counts as passed and keeps what it said first in a `flakyFailure`, the element that Surefire has for it; the
summary names it. Only failed assertions are tried again, of three cases at most: neither a crash nor what a sanitizer
found.

With `--if-time` a stage is left out, and is a skipped case, where the time of the whole check is over before it is
done: $CHECK_ENDS, in seconds since 1970. So a slow machine says what all others found, and what it did not look at.

How long it took, and how much of a processor's time, goes into NAME.time: two numbers of seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

LATE = 124  # the exit code of a command that was ended, as `timeout` has it
WORTH_S = 30.0  # of the check's time: with less than that no stage begins
TRIED_AGAIN = 3  # cases of a stage; more than these have another reason than a busy machine
# The beginnings of what pytest and GoogleTest say of a failed assertion; CTest does not tell one from a crash.
ASSERTION = re.compile(r"^E  |\[  FAILED  \]", re.MULTILINE)
NOT_TRIED_AGAIN = re.compile(r"Sanitizer|runtime error:|Segmentation fault|core dumped|crashed", re.IGNORECASE)


def keep_priority(child: int) -> None:
    """Gives the child's session this process's priority: to the scheduler of Linux it can be a group of its own."""
    with contextlib.suppress(OSError):  # not on every machine, and not upwards without privileges
        Path(f"/proc/{child}/autogroup").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))


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
    keep_priority(child.pid)
    try:
        return child.wait(deadline_s), ""
    except subprocess.TimeoutExpired:
        return LATE, f"not done after {deadline_s:.0f} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def cases_in(path: Path) -> list[ET.Element]:
    """The cases of a JUnit file; none when it is missing or damaged."""
    try:
        return list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return []


def reasons(case: ET.Element) -> list[ET.Element]:
    """Why a case failed; none where it did not."""
    return [element for tag in ("failure", "error") for element in case.findall(tag)]


def case_id(case: ET.Element) -> tuple[str | None, str | None]:
    return case.get("classname"), case.get("name")


def worth_another_try(path: Path) -> bool:
    said = ["".join(case.itertext()) for case in cases_in(path) if reasons(case)]
    return 0 < len(said) <= TRIED_AGAIN and all(
        ASSERTION.search(one) and not NOT_TRIED_AGAIN.search(one) for one in said
    )


def keep_passed(first: Path, second: Path) -> bool:
    """Marks in `first` what failed there and passed in `second` as flaky; true when that is all that failed."""
    passed = {case_id(case) for case in cases_in(second) if not reasons(case) and case.find("skipped") is None}
    tree = ET.parse(first)
    failed = [case for case in tree.getroot().iter("testcase") if reasons(case)]
    for case in failed:
        if case_id(case) in passed:
            for element in reasons(case):
                element.tag = "flakyFailure"
            case.set("status", "run")
    tree.write(first, encoding="utf-8", xml_declaration=True)
    return all(case_id(case) in passed for case in failed)


def add_case(path: Path, name: str, seconds: float, failure: str | None, kind: str = "failure") -> None:
    try:
        suite = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        suite = ET.Element("testsuite", name=name)
    parent = suite if suite.tag == "testsuite" else ET.SubElement(suite, "testsuite", name=name)
    case = ET.SubElement(parent, "testcase", classname="stage", name=name, time=f"{seconds:.3f}")
    if failure is not None:
        ET.SubElement(case, kind, message=failure)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def leave_out(path: Path, name: str, what: str, seconds: float) -> int:
    add_case(path, name, seconds, f"{what}: the time of the whole check is over", "skipped")
    print(f"--- {name}: {what}, because the time of the whole check is over, {seconds:.0f} s", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs one stage of a check.")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds (default 600)")
    parser.add_argument("--if-time", action="store_true", help="skipped where $CHECK_ENDS comes before it is done")
    parser.add_argument("--cases", action="store_true", help="the command writes {junit} itself")
    parser.add_argument("--again", metavar="ARGUMENT", help="makes the command run only what failed; once")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    junit = (options.results / f"{options.name}.xml").absolute()
    junit.parent.mkdir(parents=True, exist_ok=True)
    junit.unlink(missing_ok=True)
    print(f"--- {options.name}", flush=True)
    begin = time.monotonic()
    left_s = float(os.environ.get("CHECK_ENDS", "inf")) - time.time() if options.if_time else math.inf
    if left_s < WORTH_S:
        return leave_out(junit, options.name, "not run", 0.0)
    command = [part.replace("{junit}", str(junit)) for part in options.command]
    code, reason = run(command, min(options.deadline, left_s))
    if reason and code == LATE and left_s < options.deadline:
        return leave_out(junit, options.name, "not done", time.monotonic() - begin)
    if code and options.again and worth_another_try(junit):
        print(f"--- {options.name}: once more, what failed", flush=True)
        second = junit.with_suffix(".again")  # not .xml: its cases are not counted
        again = [part.replace("{junit}", str(second)) for part in options.command]
        left = max(1.0, options.deadline - (time.monotonic() - begin))
        code_again, reason_again = run([*again, options.again], left)
        if keep_passed(junit, second):
            code, reason = code_again, reason_again
    seconds = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = used.ru_utime + used.ru_stime
    junit.with_suffix(".time").write_text(f"{seconds:.1f} {processor_s:.1f}\n", encoding="utf-8")

    reason = reason or f"exit code {code}"
    if not options.cases:
        add_case(junit, options.name, seconds, reason if code else None)
    else:
        cases = cases_in(junit)
        if not cases and not code:
            code, reason = 1, "no tests"
        if code and not any(reasons(case) for case in cases):
            add_case(junit, options.name, seconds, reason)
    outcome = f"FAILED ({reason})" if code else "ok"
    print(f"--- {options.name}: {outcome}, {seconds:.0f} s, {processor_s:.0f} s of a processor", flush=True)
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
