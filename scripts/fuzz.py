"""Runs fuzzers side by side, each for a while, and writes a JUnit file: one case per fuzzer.

    fuzz.py --bin DIR --state DIR [--seconds N] [--seed N] [--jobs N] [--junit FILE] [FUZZER...]

What a fuzzer learns stays in STATE/corpus/NAME, beside the seeds of tests/fuzz. An input that breaks something lies in
STATE/crashes; its path, its text and what the fuzzer said are printed. Exits 1 when one broke. With `--skip REASON`
nothing runs, and every case is skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "tests" / "fuzz"
# At low priority everything can take several times as long.
SLOWER = 1 if os.getpriority(os.PRIO_PROCESS, 0) <= 0 else 5
GRACE_S = 120 * SLOWER  # beyond the time asked for: reading the corpus, and one slow input
INPUT_SECONDS = 20 * SLOWER  # an input that takes longer is a defect
LEAST_S = 5.0  # however little time there is
SHOWN_LINES = 60
SHOWN_BYTES = 2000


def all_fuzzers() -> list[str]:
    return sorted(source.stem for source in SOURCES.rglob("*_fuzz.cpp"))


@dataclass
class Outcome:
    fuzzer: str
    seconds: float
    runs: int
    failure: str | None  # what is to be read about it


def reproducers(crashes: Path, fuzzer: str) -> set[Path]:
    return set(crashes.glob(f"{fuzzer}-*"))


def counted_runs(log: str) -> int:
    """The number in `stat::number_of_executed_units: N`, which libFuzzer prints at its end."""
    found = [line.split()[-1] for line in log.splitlines() if line.startswith("stat::number_of_executed_units:")]
    return int(found[-1]) if found else 0


def described(path: Path, command: str) -> str:
    data = path.read_bytes()
    more = f" (the first {SHOWN_BYTES} of {len(data)} bytes)" if len(data) > SHOWN_BYTES else ""
    return f"input {path}{more}:\n  {data[:SHOWN_BYTES]!r}\nrun it again with: {command} {path}"


def run(fuzzer: str, options: argparse.Namespace) -> Outcome:
    name = fuzzer.removesuffix("_fuzz")
    corpus: Path = options.state / "corpus" / fuzzer
    crashes: Path = options.state / "crashes"
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    binary = options.bin / fuzzer
    words = SOURCES / "words" / f"{name}.dict"
    command = [
        str(binary),
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        f"-timeout={INPUT_SECONDS}",
        "-rss_limit_mb=2048",
        "-max_len=8192",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={crashes}/{fuzzer}-",
        *([f"-dict={words}"] if words.exists() else []),
        str(corpus),
        str(SOURCES / f"{name}_corpus"),
    ]
    before = reproducers(crashes, fuzzer)
    log = options.state / f"{fuzzer}.log"
    begin = time.monotonic()
    # Few frames per allocation: a fifth of the time goes into them otherwise.
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "malloc_context_size=8"}
    with log.open("wb") as out:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
                env=environment,
                timeout=options.seconds + GRACE_S,
                check=False,
            ).returncode
            failure = None if code == 0 else f"{fuzzer}: exit code {code}"
        except subprocess.TimeoutExpired:
            failure = f"{fuzzer}: not done {GRACE_S} s after its time"
        except OSError as error:
            failure = f"{fuzzer}: {error.strerror}"
    seconds = time.monotonic() - begin
    said = log.read_text(errors="replace")
    runs = counted_runs(said)
    if failure is None and runs == 0:
        failure = f"{fuzzer}: ran no input"
    if failure is not None:
        found = sorted(reproducers(crashes, fuzzer) - before)
        tail = "\n".join(said.splitlines()[-SHOWN_LINES:])
        failure = "\n".join([failure, tail, *(described(path, str(binary)) for path in found)])
    return Outcome(fuzzer, seconds, runs, failure)


def write_junit(path: Path, outcomes: list[Outcome], fuzzers: list[str], skip: str | None) -> None:
    suite = ET.Element("testsuite", name="fuzz")
    for fuzzer in fuzzers if skip else []:
        case = ET.SubElement(suite, "testcase", classname="fuzz", name=fuzzer, time="0")
        ET.SubElement(case, "skipped", message=skip or "")
    for outcome in outcomes:
        case = ET.SubElement(suite, "testcase", classname="fuzz", name=outcome.fuzzer, time=f"{outcome.seconds:.3f}")
        if outcome.failure is not None:
            printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in outcome.failure)
            failure = ET.SubElement(case, "failure", message=printable.splitlines()[0])
            failure.text = printable
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def affordable(seconds: int, rounds: float) -> int:
    """A third of the time that the whole check has left is for fuzzers, if they are to run for so long."""
    left_s = float(os.environ.get("CHECK_ENDS", "inf")) - time.time()
    most = max(LEAST_S, left_s / 3 / max(rounds, 1.0))
    if most >= seconds:
        return seconds
    print(f"fuzz: each for {most:.0f} s instead of {seconds}: the whole check has {left_s:.0f} s left", flush=True)
    return int(most)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs fuzzers side by side.")
    parser.add_argument("--bin", type=Path, default=Path("build/cpu-fuzz/bin"), help="where they were built")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz"), help="corpora, inputs that broke, logs")
    parser.add_argument("--seconds", type=int, default=60, help="for each (default 60; fewer before $CHECK_ENDS)")
    parser.add_argument("--seed", type=int, default=0, help="of random numbers; 0: another each time (default 0)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="at once")
    parser.add_argument("--junit", type=Path, help="file to write")
    parser.add_argument("--skip", help="run nothing, and say why")
    parser.add_argument("fuzzers", nargs="*", help="default: all")
    options = parser.parse_args()

    fuzzers = options.fuzzers or all_fuzzers()
    outcomes: list[Outcome] = []
    if options.skip:
        print(f"fuzz: skipped: {options.skip}", flush=True)
    else:
        jobs = max(1, options.jobs)
        options.seconds = affordable(options.seconds, len(fuzzers) / jobs)
        # Where the last round would leave cores idle, its fuzzers share those of the first.
        left_over = len(fuzzers) % jobs if len(fuzzers) > jobs else 0
        with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(jobs) as beside:
            running = [
                (beside if index < left_over else pool).submit(run, fuzzer, options)
                for index, fuzzer in enumerate(fuzzers)
            ]
            for outcome in (future.result() for future in running):
                outcomes.append(outcome)
                end = "ok" if outcome.failure is None else "FAILED\n" + outcome.failure
                print(f"fuzz: {outcome.fuzzer}: {outcome.runs} inputs in {outcome.seconds:.0f} s: {end}", flush=True)
    if options.junit:
        write_junit(options.junit, outcomes, fuzzers, options.skip)
    return 1 if any(outcome.failure is not None for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
