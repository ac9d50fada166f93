"""connect(): where it looks, and what it says when there is nothing."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon, Fault

import gradsync
from gradsync._commit import commit
from gradsync._launch import _places
from gradsync._transport import _handshake
from gradsync.errors import ConnectionFailed, UsageError


def failure(address: str | None = None, **arguments: object) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as caught:
        gradsync.connect(address, **arguments)  # type: ignore[arg-type]
    return caught.value


def test_an_argument_wins_over_the_environment(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSYNC_ADDRESS", "/nonexistent/gradsync.sock")
    with gradsync.connect(daemon.path) as client:
        assert client.address == daemon.path
        assert client.server["version"] == "9.9.9"


@pytest.mark.parametrize("form", ["{}", "unix:{}", "unix://{}"])
def test_the_environment_may_name_the_socket_in_each_form(
    form: str, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADSYNC_ADDRESS", form.format(daemon.path))
    with gradsync.connect() as client:
        assert client.status()["state"] == "serving"


def test_the_runtime_dir_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gradsync").mkdir()
    fake = FakeDaemon(tmp_path / "gradsync")
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with gradsync.connect() as client:
            assert client.address == str(tmp_path / "gradsync" / "gradsync.sock")
    finally:
        fake.stop()


def test_nothing_found_names_the_paths_and_how_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    error = failure()
    assert error.reason == "not_found"
    assert str(tmp_path / "gradsync" / "gradsync.sock") in str(error)
    assert "/run/gradsync/gradsync.sock" in str(error)
    assert "gradsyncd serve" in str(error)
    assert "spawn=True" in str(error)


def test_a_stale_socket_is_called_stale(tmp_path: Path) -> None:
    path = str(tmp_path / "gradsync.sock")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(path)
    error = failure(path, timeout=0.1)
    assert (error.reason, error.path) == ("stale", path)
    assert "no daemon listens" in str(error)


def test_a_named_daemon_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    error = failure(str(tmp_path / "gradsync.sock"), timeout=0.1)
    assert (error.reason, error.path) == ("not_found", str(tmp_path / "gradsync.sock"))


@pytest.mark.parametrize("leaves_a_file", [False, True], ids=["starts", "is replaced"])
def test_a_daemon_that_is_yet_to_listen_is_waited_for(leaves_a_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "gradsync.sock"
    if leaves_a_file:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
    with concurrent.futures.ThreadPoolExecutor() as threads:
        connecting = threads.submit(gradsync.connect, str(path), timeout=30)
        with pytest.raises(concurrent.futures.TimeoutError):
            connecting.result(0.2)
        path.unlink(missing_ok=True)
        fake = FakeDaemon(tmp_path)
        try:
            with connecting.result(30) as client:
                assert client.status()["state"] == "serving"
        finally:
            fake.stop()


def test_a_daemon_that_is_ending_or_full_is_waited_for(daemon: FakeDaemon) -> None:
    daemon.refuse = (503, "the daemon is shutting down")
    error = failure(daemon.path, timeout=0.1)
    assert error.reason == "ending"
    assert "the daemon is shutting down" in str(error)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        connecting = threads.submit(gradsync.connect, daemon.path, timeout=30)
        with pytest.raises(concurrent.futures.TimeoutError):
            connecting.result(0.2)
        daemon.refuse = None
        with connecting.result(30) as client:
            assert client.status()["state"] == "serving"


def test_a_plain_file_is_not_a_socket(tmp_path: Path) -> None:
    (tmp_path / "gradsync.sock").touch()
    assert failure(str(tmp_path / "gradsync.sock")).reason == "not_a_socket"


PERMISSION_PROGRAM = """
import os, sys
import gradsync
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    gradsync.connect(sys.argv[1])
except gradsync.errors.ConnectionFailed as error:
    print(error.reason, error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_permission_names_mode_owner_and_uid(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        fake = FakeDaemon(Path(folder))
        try:
            os.chmod(fake.path, 0o660)
            text = subprocess.run(
                [sys.executable, "-c", PERMISSION_PROGRAM, fake.path], check=True, capture_output=True, text=True
            ).stdout
            assert text.startswith("permission ")
            assert "mode 0660" in text
            assert "owner root (uid 0)" in text
            assert "you are uid 65534" in text
            os.chmod(folder, 0o700)
            text = subprocess.run(
                [sys.executable, "-c", PERMISSION_PROGRAM, fake.path], check=True, capture_output=True, text=True
            ).stdout
            assert "may not enter its folder" in text
        finally:
            fake.stop()


def test_a_refused_uid_gets_the_daemons_words(daemon: FakeDaemon) -> None:
    daemon.refuse = (403, "uid 4242 is not among the allowed uids")
    error = failure(daemon.path)
    assert error.reason == "refused"
    assert "uid 4242 is not among the allowed uids" in str(error)
    assert "allowed uids" in str(error)


def test_version_skew_names_both_versions(daemon: FakeDaemon) -> None:
    normal = daemon.on_session_initialize
    daemon.script["session.initialize"] = lambda params: {**normal(params), "protocol": 2}
    error = failure(daemon.path)
    assert error.reason == "version"
    assert "9.9.9" in str(error)
    assert gradsync.__version__ in str(error)


def test_version_skew_said_by_the_daemon_is_the_same_failure(daemon: FakeDaemon) -> None:
    def refuse(params: dict[str, object]) -> object:
        raise Fault("version_mismatch", "protocol 1 is too old, gradsyncd 9.9.9 speaks 2")

    daemon.script["session.initialize"] = refuse
    error = failure(daemon.path)
    assert error.reason == "version"
    assert "gradsyncd 9.9.9 speaks 2" in str(error)
    assert gradsync.__version__ in str(error)


@pytest.mark.parametrize("status", [404, 200])
def test_another_web_server_is_not_a_gradsync_daemon(status: int, daemon: FakeDaemon) -> None:
    daemon.refuse = (status, "hello")
    assert failure(daemon.path).reason == "not_gradsync"


def test_something_that_speaks_no_http_is_not_a_gradsync_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        import threading

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"220 ready\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        error = failure(path)
        thread.join()
    assert error.reason == "not_gradsync"


def test_a_listener_that_never_answers_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handshake, "_SHORTEST_S", 0.05)
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert failure(path, timeout=0.2).reason == "timeout"


def test_a_process_that_was_stopped_until_its_deadline_was_over_still_connects(daemon: FakeDaemon) -> None:
    _places.open_socket(daemon.path, -3.0).close()


@pytest.mark.parametrize("address", ["ws://localhost:9477", "localhost:9477", "unix:", "/x/" * 60])
def test_an_address_without_a_unix_socket_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="socket"):
        gradsync.connect(address)


def test_spawn_and_an_address_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="spawn"):
        gradsync.connect("/x.sock", spawn=True)


def test_spawn_without_a_binary_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRADSYNCD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure(spawn=True)
    assert error.reason == "spawn"
    assert "PATH" in str(error)
    monkeypatch.setenv("GRADSYNCD", str(tmp_path / "nowhere"))
    assert "GRADSYNCD=" in str(failure(spawn=True))


def test_spawn_shows_the_log_of_a_daemon_that_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "gradsyncd"
    broken.write_text("#!/bin/sh\necho something is wrong >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("GRADSYNCD", str(broken))
    error = failure(spawn=True)
    assert "status 3" in str(error)
    assert "something is wrong" in str(error)


def test_the_version_names_client_protocol_and_the_daemon_that_would_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gradsync.__main__ import main

    def said() -> list[str]:
        assert main(["--version"]) == 0
        return capsys.readouterr().out.splitlines()

    torch = importlib.metadata.version("torch")
    client = f"gradsync {gradsync.__version__} (commit {{}}, protocol 1; torch {torch}, gradsync-none no)"
    without_git, client = client.format("unknown"), client.format(commit())
    monkeypatch.setattr("gradsync._cli._OPTIONAL", ("torch", "gradsync-none"))
    daemon = tmp_path / "gradsyncd"
    daemon.write_text('#!/bin/sh\n[ "$*" = --version ] && echo "gradsyncd 7.7.7 (commit 0123)"\n')
    daemon.chmod(0o755)
    monkeypatch.setenv("GRADSYNCD", str(daemon))
    assert said() == [client, f"daemon {daemon}: gradsyncd 7.7.7 (commit 0123)"]

    daemon.write_text("#!/bin/sh\necho what is that >&2\nexit 64\n")  # a release before --version
    assert said() == [client, f"daemon {daemon}: does not say its version (exit code 64): what is that"]

    daemon.write_bytes(b"\x7fELF of another machine")
    assert said()[1].startswith(f"daemon {daemon}: does not run: ")

    monkeypatch.delenv("GRADSYNCD")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    words = said()
    assert words[0] == without_git
    assert words[1].startswith("no daemon: ")
    assert "PATH" in words[1]


def test_close_is_idempotent_and_calls_after_it_say_so(daemon: FakeDaemon) -> None:
    client = gradsync.connect(daemon.path)
    client.close()
    client.close()
    with pytest.raises(gradsync.errors.ConnectionLost, match="closed"):
        client.status()


def test_a_dropped_client_closes_its_connection(daemon: FakeDaemon) -> None:
    import gc

    client = gradsync.connect(daemon.path)
    channel = client._channel
    del client
    gc.collect()
    assert channel.closed


def test_the_command_line_prints_the_status(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    from gradsync.__main__ import main

    assert main(["--address", daemon.path]) == 0
    assert "gradsyncd 9.9.9" in capsys.readouterr().out
    assert main(["--address", daemon.path + ".none"]) == 1
    assert "no gradsyncd found" in capsys.readouterr().err
