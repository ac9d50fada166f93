"""The daemon and its clients as a user who is not root, with nothing configured: no HOME, no XDG_RUNTIME_DIR."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import secrets
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon import BINARY, DEADLINE_S

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as another user"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]

CONFIGURATION_ERROR = 78
UNAVAILABLE = 69
MODULES = {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one.endswith(("site-packages", "src")))}
AUDITED = str(Path(__file__).parents[1] / "audit_scripts.py")
CONNECT = "import gradsync; print(gradsync.connect({}).address)"
FAILURE = """
import gradsync
try:
    gradsync.connect()
except gradsync.errors.ConnectionFailed as error:
    print(error.reason, error)
"""


@dataclass(frozen=True)
class User:
    """A user that has no name and no files but those of this test."""

    uid: int

    @property
    def folder(self) -> str:
        return f"/tmp/gradsync-{self.uid}"

    @property
    def socket(self) -> str:
        return f"{self.folder}/gradsync.sock"

    def command(self, *command: str) -> list[str]:
        number = str(self.uid)
        return ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--", *command]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command),
            env=bare(**environment),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


def bare(**extra: str) -> dict[str, str]:
    return {"PATH": os.defpath, "GRADSYNCD": BINARY, **extra}


@pytest.fixture
def user() -> Iterator[User]:
    one = User(20_000 + secrets.randbelow(40_000))  # a container may have no more users than 65,536
    for command in ((BINARY, "--version"), (sys.executable, "-c", "import gradsync")):
        started = one.run(*command)
        if started.returncode != 0:  # it lies in a folder of root alone, say
            pytest.skip(f"other users than root cannot start {command[0]}: {started.stderr.strip()[-200:]}")
    yield one
    with contextlib.suppress(FileNotFoundError):
        if os.path.islink(one.folder):
            os.unlink(one.folder)
        else:
            shutil.rmtree(one.folder)


@pytest.fixture
def python(user: User) -> str:
    """An interpreter that programs of this user can start; that of the tests may lie in root's home."""
    for one in (sys.executable, "/usr/bin/python3"):
        if (
            user.run("/bin/sh", "-c", f"'{BINARY}' --version && '{one}' -c 'import gradsync'", **MODULES).returncode
            == 0
        ):
            return one
    pytest.skip("programs of other users than root cannot start the daemon, or no Python that has this package")


@contextlib.contextmanager
def serving(user: User, **environment: str) -> Iterator[tuple[str, int]]:
    """`gradsyncd serve` on a terminal: what it wrote there until it listened, and its pid."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        user.command(BINARY, "serve", "--health", "off"), env=bare(**environment), cwd="/", stderr=theirs
    )
    os.close(theirs)
    try:
        yield read_until(ours, "socket=", "listens at"), process.pid
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
        os.close(ours)
    assert process.returncode == 0


def read_until(fd: int, *words: str) -> str:
    text, end = "", time.monotonic() + DEADLINE_S
    while not all(word in text for word in words) or not text.endswith("\n"):
        assert select.select([fd], [], [], max(0.0, end - time.monotonic()))[0], text
        try:
            text += os.read(fd, 4096).decode()
        except OSError:  # the other end was closed
            raise AssertionError(text) from None
    return text.replace("\r\n", "\n")


def check_found(user: User, socket: str, pid: int, **environment: str) -> None:
    """Both clients find the daemon without an address."""
    status = user.run(BINARY, "status", "--json", **environment)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["pid"] == pid
    connected = user.run(sys.executable, "-c", CONNECT.format(""), **environment)
    assert connected.stdout.strip() == socket, connected.stderr


def test_a_user_without_anything_is_served_in_a_private_folder_of_tmp(user: User) -> None:
    with serving(user) as (said, pid):
        assert f"socket={user.socket} " in said
        assert f"gradsyncd listens at {user.socket}, where programs of uid {user.uid} look for it\n" in said
        found = os.lstat(user.folder)
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, user.uid)
        check_found(user, user.socket, pid)
    with serving(user) as (said, pid):  # the folder is there already
        check_found(user, user.socket, pid)


def test_a_user_with_a_runtime_directory_is_served_there(user: User) -> None:
    with tempfile.TemporaryDirectory(prefix="gradsync-runtime-", dir="/tmp") as runtime:
        os.chown(runtime, user.uid, user.uid)
        with serving(user, XDG_RUNTIME_DIR=runtime) as (said, pid):
            assert f"socket={runtime}/gradsync/gradsync.sock " in said
            check_found(user, f"{runtime}/gradsync/gradsync.sock", pid, XDG_RUNTIME_DIR=runtime)
        assert not os.path.exists(user.folder)


def test_a_runtime_directory_of_somebody_else_is_passed_over(user: User) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gradsync-runtime-", dir="/tmp") as runtime,  # of root, as `su` leaves it
        serving(user, XDG_RUNTIME_DIR=runtime) as (said, pid),
    ):
        assert f"socket={user.socket} " in said
        check_found(user, user.socket, pid, XDG_RUNTIME_DIR=runtime)
        check_found(user, user.socket, pid)  # programs of the same user in another session


def a_link(user: User) -> None:
    os.symlink("/var/tmp", user.folder)


def of_somebody_else(user: User) -> None:
    os.mkdir(user.folder, 0o700)
    os.chown(user.folder, user.uid + 1, user.uid + 1)


def group_writable(user: User) -> None:
    os.mkdir(user.folder)
    os.chmod(user.folder, 0o770)
    os.chown(user.folder, user.uid, user.uid)


@pytest.mark.parametrize(
    ("plant", "daemon_says", "client_says"),
    [
        (a_link, "is a symbolic link", "is a symbolic link"),
        (of_somebody_else, "is a directory of uid", "belongs to uid"),
        (group_writable, "is a directory of mode 0770", "has mode 0770 instead of 0700"),
    ],
)
def test_what_others_planted_in_tmp_is_refused(
    plant: Callable[[User], None], daemon_says: str, client_says: str, user: User
) -> None:
    plant(user)
    served = user.run(BINARY, "serve", "--health", "off")
    assert served.returncode == CONFIGURATION_ERROR
    assert f"'{user.folder}' {daemon_says}" in served.stderr
    assert "remove it, or have its owner remove it" in served.stderr
    assert "gradsyncd serve --socket PATH" in served.stderr
    status = user.run(BINARY, "status")
    assert status.returncode == UNAVAILABLE
    assert f"'{user.folder}' {daemon_says}" in status.stderr
    connected = user.run(sys.executable, "-c", FAILURE)
    assert connected.stdout.startswith("unsafe "), connected.stdout + connected.stderr
    assert f"{user.folder} {client_says}" in connected.stdout


def test_a_private_daemon_needs_nothing(user: User, python: str) -> None:
    ran = user.run(BINARY, "run", "--", python, "-c", CONNECT.format(""), **MODULES)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("/tmp/gradsync-")
    spawned = user.run(python, "-c", CONNECT.format("spawn=True"), **MODULES)
    assert (spawned.returncode, spawned.stderr) == (0, "")
    assert spawned.stdout.startswith("/tmp/gradsync-")


@pytest.mark.training
def test_an_audit_needs_nothing(user: User, python: str) -> None:
    command = (python, "-m", "gradsync", "audit", "--steps", "2", "--", python, AUDITED, "bfloat16")
    done = user.run(*command, OMP_NUM_THREADS="1", **MODULES)
    assert done.returncode == 1, done.stdout + done.stderr  # its norm is computed in bfloat16
    assert "low_precision" in done.stdout
