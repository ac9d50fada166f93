"""`gradsyncd run -- cmd…`: a private daemon beside a command."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import BINARY, DEADLINE_S, clean_environment, run_command

STATUS = f"{BINARY} status --json"
# Counts signals until SIGTERM, or until its stdin closes.
COUNTER = """
import signal, sys
counts = {}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
    print(signal.Signals(number).name, counts[number], flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, count)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_the_command_finds_the_daemon_and_its_folder_is_private() -> None:
    result = run_command(
        "run",
        "--",
        "/bin/sh",
        "-c",
        f'echo "$GRADSYNC_ADDRESS"; stat -c %a "$(dirname "${{GRADSYNC_ADDRESS#unix:}}")"; {STATUS}',
    )
    address, mode, status = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert address.startswith("unix:/")
    assert mode == "700"
    assert '"state":"serving"' in status
    assert not Path(address.removeprefix("unix:")).parent.exists()
    assert result.stderr == ""


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_that_of_the_command(code: int) -> None:
    assert run_command("run", "--", "/bin/sh", "-c", f"exit {code}").returncode == code


def test_a_command_ended_by_a_signal_is_128_and_the_signal() -> None:
    assert run_command("run", "--", "/bin/sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


def test_a_command_that_does_not_exist_is_127(tmp_path: Path) -> None:
    result = run_command("run", "--", str(tmp_path / "nothing"))
    assert result.returncode == 127
    assert "nothing" in result.stderr


def test_a_command_that_is_not_executable_is_126(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a program\n")
    assert run_command("run", "--", str(tmp_path / "text")).returncode == 126


def test_flags_behind_the_separator_belong_to_the_command() -> None:
    assert run_command("run", "--", "echo", "--help", "--", "x").stdout == "--help -- x\n"


def test_an_outer_address_is_replaced() -> None:
    result = run_command("run", "--", "env", env=clean_environment(GRADSYNC_ADDRESS="unix:/outer.sock"))
    addresses = [line for line in result.stdout.splitlines() if line.startswith("GRADSYNC_ADDRESS=")]
    assert len(addresses) == 1
    assert "/outer.sock" not in addresses[0]


def test_signals_are_passed_on() -> None:
    with subprocess.Popen(
        [BINARY, "run", "--", sys.executable, "-c", COUNTER], env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"{name} 1\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM 1\n"
        assert process.wait(DEADLINE_S) == 7


def test_an_interrupt_of_the_terminal_reaches_the_command_once() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(BINARY, [BINARY, "run", "--", sys.executable, "-c", COUNTER], clean_environment())
    received = b""

    def read_until(text: bytes) -> None:
        nonlocal received
        while text not in received:
            received += os.read(terminal, 4096)

    read_until(b"ready")
    os.write(terminal, b"\x03")
    read_until(b"SIGINT 1")
    os.kill(pid, signal.SIGUSR1)  # comes after whatever the daemon passed on for ^C
    read_until(b"SIGUSR1 1")
    os.kill(pid, signal.SIGTERM)
    read_until(b"SIGTERM 1")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 7
    assert b"SIGINT 2" not in received


def test_the_command_has_the_signal_state_of_before() -> None:
    script = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTERM))"
    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert run_command("run", "--", sys.executable, "-c", script).stdout == plain
    ignored = run_command("run", "--", "grep", "SigIgn", "/proc/self/status").stdout.split()[1]
    assert int(ignored, 16) & (1 << (signal.SIGPIPE - 1)) == 0  # the daemon ignores it for itself


def test_no_descriptor_of_the_daemon_reaches_the_command() -> None:
    result = run_command("run", "--", "/bin/sh", "-c", "ls -l /proc/self/fd")
    links = [line.split(" -> ")[1] for line in result.stdout.splitlines() if " -> " in line]
    assert not [link for link in links if "eventpoll" in link or "signalfd" in link or "eventfd" in link]
    assert len([link for link in links if link.startswith("socket:")]) == 0


def test_a_wrong_setting_is_78_and_nothing_is_started() -> None:
    result = run_command("run", "--engine-threads", "many", "--", "echo", "started")
    assert result.returncode == 78
    assert result.stdout == ""


def gradsync_run(*arguments: str, binary: str) -> subprocess.CompletedProcess[str]:
    """The command of the client, which needs no daemon in PATH."""
    return subprocess.run(
        [sys.executable, "-m", "gradsync", "run", *arguments],
        env=clean_environment(GRADSYNCD=binary),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_client_has_the_same_command() -> None:
    done = gradsync_run("--", "/bin/sh", "-c", f"{STATUS}; exit 7", binary=BINARY)
    assert done.returncode == 7
    assert '"jobs":[]' in done.stdout, done.stderr
    assert gradsync_run("--help", binary=BINARY).stdout == run_command("run", "--help").stdout


def test_the_client_passes_on_what_the_daemon_knows() -> None:
    for words in (["explain", "rank_lost"], ["explain"], ["trace", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "gradsync", *words],
            env=clean_environment(GRADSYNCD=BINARY),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, run_command(*words).stdout), done.stderr


def test_the_command_of_the_client_says_that_there_is_no_daemon() -> None:
    done = gradsync_run("--", "true", binary="/does/not/exist")
    assert done.returncode == 2
    assert "GRADSYNCD='/does/not/exist' is not an executable file" in done.stderr
