"""Adds up JUnit files: what failed cases said, a line per stage, and last `N passed, N failed, N skipped`.

    summary.py DIRECTORY... [--require STAGE]... [--failed COMMAND]...

Exits 1 when a case failed, a file cannot be read, or a required stage left no case. A requirement is the beginning of
a stage's name, so that `lint` is met by `lint-ruff.xml`.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

SHOWN_CASES = 10
SHOWN_LINES = 60  # of each kind of output
SAID_IN = ("failure", "error", "flakyFailure", "system-out")


@dataclass
class Stage:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # of failed cases: the name and what the file holds of the output
    flaky: list[str] = field(default_factory=list)  # names of those that passed when they were tried again
    skipped: int = 0
    left_out: list[str] = field(default_factory=list)  # stages for which a slow machine had no time
    took: str = ""


def time_of(path: Path, cases: list[ET.Element]) -> str:
    """What scripts/stage.py measured; without that, what the cases say, which may have run side by side."""
    try:
        seconds, processor_s = map(float, path.with_suffix(".time").read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return f"{sum(float(case.get('time') or 0) for case in cases):.0f} s of cases"
    return f"{seconds:.0f} s, {processor_s:.0f} s of a processor"


def read(path: Path) -> Stage:
    stage = Stage()
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError) as error:
        stage.failed.append(f"{path.name} cannot be read: {error}")
        return stage
    stage.took = time_of(path, cases)
    for case in cases:
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        # CTest says `notrun` (a test whose binary is missing) and `disabled` where others have an element.
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            stage.failed.append(name)
            stage.said += [f"{name}\n{text}" for text in [said_by(case)] if text]
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            stage.skipped += 1
            if case.get("classname") == "stage":
                stage.left_out.append(case.get("name") or "")
        else:
            stage.passed += 1
            if case.find("flakyFailure") is not None:
                stage.flaky.append(name)
                stage.said.append(f"{name} (passed when tried again)\n{said_by(case)}")
    if not cases:
        stage.failed.append(f"{path.name} has no tests")
    return stage


def said_by(case: ET.Element) -> str:
    """The end of what a failed case left. CTest has the output in `system-out`, pytest the traceback in `failure`."""
    found = [element for tag in SAID_IN if (element := case.find(tag)) is not None]
    texts = [(element.text or element.get("message") or "").splitlines()[-SHOWN_LINES:] for element in found]
    return "\n".join("\n".join(lines) for lines in texts if lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Adds up JUnit files.")
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--require", action="append", default=[], help="beginning of a stage's name that must exist")
    parser.add_argument("--failed", action="append", default=[], help="a command that failed, in case no file tells")
    options = parser.parse_args()

    stages = {path: read(path) for directory in options.directories for path in sorted(directory.rglob("*.xml"))}
    said = [f"=== {path.stem}: {text}" for path, stage in stages.items() for text in stage.said]
    for text in said[:SHOWN_CASES]:
        print(text)
    width = max((len(path.stem) for path in stages), default=0)
    for path, stage in stages.items():
        line = f"{stage.passed} passed, {len(stage.failed)} failed, {stage.skipped} skipped"
        print(f"{path.stem:<{width}}  {line}  ({stage.took})")
    failed = [f"{path.stem}: {name}" for path, stage in stages.items() for name in stage.failed]
    for beginning in options.require:
        if not any(path.stem.startswith(beginning) for path in stages):
            failed.append(f"{beginning}: the stage did not run")
    failed = failed or options.failed
    for path, stage in stages.items():
        for name in stage.flaky:
            print(f"flaky (failed once, passed when tried again; mend it): {path.stem}: {name}")
    left_out = [name for stage in stages.values() for name in stage.left_out]
    for name in left_out:
        print(f"left out, because there was no time: {name}")
    for name in failed:
        print(f"failed: {name}")
    passed = sum(stage.passed for stage in stages.values())
    skipped = sum(stage.skipped for stage in stages.values())
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not (passed or left_out) else 0


if __name__ == "__main__":
    sys.exit(main())
