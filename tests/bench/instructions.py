"""Instructions of the engine per step of one node, counted by callgrind, beside the figures that were kept.

A count does not change with the load of the machine, as times do. The figures are of one compiler and one libc, so the
benchmark is skipped where others built it. `build/venv/bin/python tests/bench/instructions.py` keeps new ones.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import results

KEPT = Path(__file__).resolve().with_name("instructions.json")
CASES = ("empty", "arena", "stats")
STEPS = 1000
WANTED = 1.02


def counted(binary: Path, case: str) -> tuple[str, int]:
    """What built the program, and the instructions of a step."""
    with tempfile.TemporaryDirectory(prefix="gradsync-bench-") as folder:
        done = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                f"--callgrind-out-file={folder}/callgrind.out",
                "--collect-atstart=no",
                "--toggle-collect=gradsync::bench::take_steps(*",
                str(binary),
                case,
                str(STEPS),
                folder,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or collected is None or int(collected[1]) == 0:
        raise RuntimeError(f"valgrind ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.strip(), int(collected[1]) // STEPS


def count_all(binaries: Path) -> dict[str, Any]:
    if shutil.which("valgrind") is None:
        raise results.Skipped("valgrind is not installed (make setup installs it where it can be had)")
    binary = binaries / "bench_instructions"
    if not binary.exists():
        raise RuntimeError(f"{binary} is missing: build it with `make build`")
    found = {case: counted(binary, case) for case in CASES}
    return {
        "built_by": found[CASES[0]][0],
        "steps": STEPS,
        "instructions_per_step": {case: count for case, (_, count) in found.items()},
    }


def run(name: str, rounds: int, binaries: Path) -> dict[str, Any]:
    """One round: what is counted is the same in each."""
    kept = json.loads(KEPT.read_text())
    found = count_all(binaries)
    if found["built_by"] != kept["built_by"]:
        raise results.Skipped(f"the figures are those of {kept['built_by']}, this was built by {found['built_by']}")
    before, now = kept["instructions_per_step"], found["instructions_per_step"]
    bars = [results.Bar(f"{case} / kept", round(now[case] / before[case], 4), WANTED) for case in CASES]
    shown = {case: f"{now[case]} (kept {before[case]})" for case in CASES}
    print(f"{name}: {', '.join(f'{case} {text}' for case, text in shown.items())}", flush=True)
    config = {"steps": STEPS, "kept": before, "found": now, "shown": shown}
    return results.write(name, "instructions", [float(now["empty"])], {}, None, config, bars)


def main() -> None:
    found = count_all(results.ROOT / "build" / "cpu-release" / "bin")
    KEPT.write_text(json.dumps({**found, "machine": results.machine()}, indent=2) + "\n")
    print(json.dumps(found["instructions_per_step"]))


if __name__ == "__main__":
    sys.exit(main())
