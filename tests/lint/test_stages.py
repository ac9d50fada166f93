"""The scripts that count tests: a stage that fails in any way must be seen in the totals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ONE_PASSED = '<testsuite><testcase name="a" time="0.5"/></testsuite>'
TWO_FAILED = '<testsuites><testsuite><testcase name="a"><failure/></testcase><testcase name="b"><error/></testcase></testsuite></testsuites>'  # noqa: E501
ONE_SKIPPED = '<testsuite><testcase name="a"><skipped/></testcase></testsuite>'


def stage(results: Path, *arguments: str) -> int:
    command = [sys.executable, str(SCRIPTS / "stage.py"), "--results", str(results), *arguments]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


def summary(results: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPTS / "summary.py"), str(results), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout.splitlines()[-1]


def writes(text: str, code: int = 0) -> list[str]:
    """A command that leaves a JUnit file and exits with a code."""
    program = f"import sys; open(sys.argv[1], 'w').write({text!r}); sys.exit({code})"
    return ["--", sys.executable, "-c", program, "{junit}"]


def test_a_single_command_is_one_case(tmp_path: Path) -> None:
    assert stage(tmp_path, "--name", "good", "--", "true") == 0
    assert stage(tmp_path, "--name", "bad", "--", "false") == 1
    assert summary(tmp_path) == (1, "1 passed, 1 failed, 0 skipped")


def test_a_summary_has_the_time_that_a_stage_took(tmp_path: Path) -> None:
    stage(tmp_path, "--name", "timed", "--cases", *writes(ONE_PASSED))
    wall, processor = map(float, (tmp_path / "timed.time").read_text().split())
    assert min(wall, processor) >= 0
    (tmp_path / "timed.time").write_text("12.3 23.9\n")
    (tmp_path / "by-hand.xml").write_text(ONE_PASSED)
    command = [sys.executable, str(SCRIPTS / "summary.py"), str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "(12 s, 24 s of a processor)" in said
    assert "(0 s of cases)" in said


def test_a_command_that_does_not_exist_fails(tmp_path: Path) -> None:
    assert stage(tmp_path, "--name", "absent", "--", "/nonexistent/command") == 1
    assert summary(tmp_path) == (1, "0 passed, 1 failed, 0 skipped")


def test_the_cases_of_a_command_are_counted(tmp_path: Path) -> None:
    assert stage(tmp_path, "--name", "passed", "--cases", *writes(ONE_PASSED)) == 0
    assert stage(tmp_path, "--name", "skipped", "--cases", *writes(ONE_SKIPPED)) == 0
    assert summary(tmp_path) == (0, "1 passed, 0 failed, 1 skipped")
    assert stage(tmp_path, "--name", "failed", "--cases", *writes(TWO_FAILED, 1)) == 1
    assert summary(tmp_path) == (1, "1 passed, 2 failed, 1 skipped")


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        (writes(ONE_PASSED, 3), "1 passed, 1 failed, 0 skipped"),
        (writes("<testsuite>", 0), "0 passed, 1 failed, 0 skipped"),
        (writes("<testsuite/>", 0), "0 passed, 1 failed, 0 skipped"),
        (["--", "true"], "0 passed, 1 failed, 0 skipped"),
        (["--", "false"], "0 passed, 1 failed, 0 skipped"),
    ],
    ids=["crash after passing", "damaged file", "no cases", "no file", "crash before any file"],
)
def test_a_stage_that_ends_badly_without_a_failed_case_gets_one(
    tmp_path: Path, arguments: list[str], total: str
) -> None:
    assert stage(tmp_path, "--name", "stage", "--cases", *arguments) == 1
    assert summary(tmp_path) == (1, total)


def writes_in_turn(first: str, second: str, code: int, *, then: int = 0) -> list[str]:
    """A command that fails at first, and that leaves another file when it is told to run what failed."""
    program = f"""
import sys
again = sys.argv[2:] == ["--last-failed"]
open(sys.argv[1], "w").write({second!r} if again else {first!r})
sys.exit({then} if again else {code})
"""
    return ["--again=--last-failed", "--", sys.executable, "-c", program, "{junit}"]


def failing(*names: str, text: str = "E  assert") -> str:
    cases = "".join(f'<testcase name="{name}"><failure>{text}</failure></testcase>' for name in names)
    return f'<testsuite><testcase name="good"/>{cases}</testsuite>'


def test_what_passes_when_it_is_tried_again_is_counted_and_named(tmp_path: Path) -> None:
    command = writes_in_turn(failing("a", text="E  was 6499"), ONE_PASSED, 1)
    assert stage(tmp_path, "--name", "python", "--cases", *command) == 0
    assert summary(tmp_path) == (0, "2 passed, 0 failed, 0 skipped")
    shown = subprocess.run(
        [sys.executable, str(SCRIPTS / "summary.py"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    assert shown[:2] == ["=== python: a (passed when tried again)", "E  was 6499"]
    assert "flaky (failed once, passed when tried again; mend it): python: a" in shown


@pytest.mark.parametrize(
    ("first", "second", "then", "total"),
    [
        (failing("a"), failing("a"), 1, "1 passed, 1 failed, 0 skipped"),
        (failing("a", "b"), ONE_PASSED, 0, "2 passed, 1 failed, 0 skipped"),
        (failing("a"), ONE_SKIPPED, 0, "1 passed, 1 failed, 0 skipped"),
        (failing("a"), "<testsuite", 0, "1 passed, 1 failed, 0 skipped"),
        (failing("a"), ONE_PASSED, 3, "2 passed, 1 failed, 0 skipped"),
        (failing(*"abcd"), "unread", 0, "1 passed, 4 failed, 0 skipped"),
        (failing("a", text="E  was: ThreadSanitizer: data race"), ONE_PASSED, 0, "1 passed, 1 failed, 0 skipped"),
        (failing("a", text="worker 'gw0' crashed"), ONE_PASSED, 0, "1 passed, 1 failed, 0 skipped"),
        (failing("a", text=""), ONE_PASSED, 0, "1 passed, 1 failed, 0 skipped"),
    ],
    ids=[
        "fails twice",
        "one of two",
        "skipped",
        "damaged",
        "ends badly",
        "too many",
        "sanitizer",
        "crash",
        "says nothing",
    ],
)
def test_what_fails_still_fails_after_a_second_try(
    tmp_path: Path, first: str, second: str, then: int, total: str
) -> None:
    assert stage(tmp_path, "--name", "s", "--cases", *writes_in_turn(first, second, 1, then=then)) == 1
    assert summary(tmp_path) == (1, total)


def test_a_stage_past_its_deadline_is_ended_and_fails(tmp_path: Path) -> None:
    hangs = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    assert stage(tmp_path, "--name", "hangs", "--deadline", "0.5", "--", *hangs) == 1
    assert summary(tmp_path) == (1, "0 passed, 1 failed, 0 skipped")


@pytest.mark.parametrize(("left_s", "what"), [(5, "not run"), (31, "not done")])
def test_a_stage_for_which_the_check_has_no_time_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: int, what: str
) -> None:
    monkeypatch.setenv("CHECK_ENDS", str(time.time() + left_s))
    command = [sys.executable, str(SCRIPTS / "stage.py"), "--results", str(tmp_path), "--name", "late", "--if-time"]
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    done = subprocess.run([*command, "--", *waits], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert f"--- late: {what}, because the time of the whole check is over" in done.stdout
    assert summary(tmp_path, "--require", "late") == (0, "0 passed, 0 failed, 1 skipped")
    assert stage(tmp_path, "--name", "early", "--", "true") == 0
    assert summary(tmp_path, "--require", "late") == (0, "1 passed, 0 failed, 1 skipped")
    said = subprocess.run([sys.executable, str(SCRIPTS / "summary.py"), str(tmp_path)], capture_output=True, text=True)
    assert "left out, because there was no time: late" in said.stdout


def test_that_there_is_no_time_excuses_neither_a_failure_nor_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECK_ENDS", str(time.time() + 50))
    assert stage(tmp_path, "--name", "fails", "--if-time", "--", "false") == 1
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    assert stage(tmp_path, "--name", "hangs", "--if-time", "--deadline", "0.5", "--", *waits) == 1
    monkeypatch.setenv("CHECK_ENDS", "0")
    assert stage(tmp_path, "--name", "must", "--", "false") == 1
    assert summary(tmp_path) == (1, "0 passed, 3 failed, 0 skipped")


def test_a_stage_that_is_terminated_takes_its_command_along(tmp_path: Path) -> None:
    # The command holds the pipe open, so that its end of file is the end of the command.
    says_hello = [sys.executable, "-c", "import threading; print('up', flush=True); threading.Event().wait()"]
    command = [sys.executable, str(SCRIPTS / "stage.py"), "--results", str(tmp_path), "--name", "s", "--", *says_hello]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "up" in (process.stdout.readline(), process.stdout.readline().strip())
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 128 + 15


def test_a_command_can_be_interrupted_also_when_the_stage_runs_in_the_background(tmp_path: Path) -> None:
    program = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    in_background = f"trap '' INT; exec {sys.executable} {SCRIPTS / 'stage.py'} --results {tmp_path} --name s"
    command = ["sh", "-c", f'{in_background} -- "$@"', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_a_required_stage_that_did_not_run_is_a_failure(tmp_path: Path) -> None:
    stage(tmp_path, "--name", "lint-ruff", "--", "true")
    assert summary(tmp_path, "--require", "lint") == (0, "1 passed, 0 failed, 0 skipped")
    assert summary(tmp_path, "--require", "cpp") == (1, "1 passed, 1 failed, 0 skipped")


def test_a_failed_command_counts_only_when_no_file_tells(tmp_path: Path) -> None:
    stage(tmp_path, "--name", "good", "--", "true")
    assert summary(tmp_path, "--failed=make test") == (1, "1 passed, 1 failed, 0 skipped")
    stage(tmp_path, "--name", "bad", "--", "false")
    assert summary(tmp_path, "--failed=make test") == (1, "1 passed, 1 failed, 0 skipped")


def test_what_failed_cases_said_is_shown(tmp_path: Path) -> None:
    by_pytest = '<testcase name="a"><failure message="m">first&#10;E  assert 1 == 2</failure></testcase>'
    by_ctest = '<testcase name="b" status="fail"><failure/><system-out>Value of: x</system-out></testcase>'
    (tmp_path / "stage.xml").write_text(f"<testsuite>{by_pytest}{by_ctest}</testsuite>")
    command = [sys.executable, str(SCRIPTS / "summary.py"), str(tmp_path)]
    shown = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout
    said = ["=== stage: a", "first", "E  assert 1 == 2", "=== stage: b", "Value of: x"]
    assert shown.splitlines()[: len(said)] == said


def test_nothing_at_all_is_not_a_success(tmp_path: Path) -> None:
    assert summary(tmp_path) == (1, "0 passed, 0 failed, 0 skipped")


def script_beside(results: Path, program: str, rest: str) -> list[str]:
    """Runs a program as the stage `slow` beside others, and then goes on with the rest."""
    (results / "program.py").write_text(program)
    work = f"work() {{ stage --name slow -- {sys.executable} {results}/program.py; }}"
    return ["bash", "-c", f"results={results}; . scripts/stages.sh; {work}; beside work; {rest}"]


def test_stages_beside_others_have_the_lowest_priority_and_are_waited_for(tmp_path: Path) -> None:
    asks = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    command = script_beside(tmp_path, asks, "joined")
    done = subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, text=True, timeout=60, check=True)
    assert "\n19\n" in done.stdout
    assert "--- slow: ok" in done.stdout
    assert summary(tmp_path, "--require", "slow") == (0, "1 passed, 0 failed, 0 skipped")


def is_running(process: int) -> bool:
    """Not a zombie, which nobody has to collect where the first process of the machine is not an init."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between open and read
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stages_beside_others_end_with_the_script(tmp_path: Path, number: signal.Signals) -> None:
    os.mkfifo(tmp_path / "up")
    waits = f"import os, threading\nopen('{tmp_path}/up', 'w').write(str(os.getpid()))\nthreading.Event().wait()\n"
    command = script_beside(tmp_path, waits, "sleep 1000; :")
    with subprocess.Popen(command, cwd=SCRIPTS.parent, start_new_session=True) as script:
        waiting = int((tmp_path / "up").read_text())
        # Ctrl-C is for the group of the terminal, SIGTERM for the script alone.
        (os.killpg if number == signal.SIGINT else os.kill)(script.pid, number)
        script.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)  # its `sleep`
    until = time.monotonic() + 30
    while is_running(waiting):
        assert time.monotonic() < until, "the command of a stage outlived the script"
        time.sleep(0.01)


def test_stages_beside_others_that_are_killed_are_a_failure(tmp_path: Path) -> None:
    kills = "import os, signal\nos.killpg(os.getpgid(os.getppid()), signal.SIGKILL)\n"
    command = script_beside(tmp_path, kills, "joined")
    subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, timeout=60, check=False)
    assert summary(tmp_path) == (1, "0 passed, 1 failed, 0 skipped")
