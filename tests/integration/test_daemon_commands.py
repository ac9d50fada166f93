"""Commands that need no daemon, or say that there is none; exit codes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from daemon import BINARY, Daemon, clean_environment, run_command

EXAMPLE = Path(__file__).parents[2] / "deploy/config/gradsyncd.toml"


def test_version_in_words_and_as_json() -> None:
    assert run_command("version").stdout.startswith("gradsyncd ")
    version = json.loads(run_command("version", "--json").stdout)
    assert version["name"] == "gradsyncd"
    assert version["protocol"] == 1


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["run"],
        ["check-config"],
        ["config"],
        ["config", "show"],
        ["status"],
        ["rpc"],
        ["policy", "replay"],
        ["version"],
    ],
)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = run_command(*command, "--help")
    assert result.returncode == 0
    assert "xample" in result.stdout or command == ["config"]
    assert result.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["serve", "--sockt", "x"],
        ["run"],
        ["run", "--"],
        ["status", "--", "x"],
        ["rpc"],
        ["rpc", "status.get", "[1]"],
    ],
)
def test_a_wrong_command_line_is_64(arguments: list[str]) -> None:
    result = run_command(*arguments)
    assert result.returncode == 64
    assert result.stderr.startswith("gradsyncd: ")


def test_the_shipped_example_is_what_config_show_prints() -> None:
    result = run_command("config", "show")
    assert result.returncode == 0
    assert result.stdout == EXAMPLE.read_text()


def test_check_config_says_ok_or_names_the_fault(tmp_path: Path) -> None:
    assert run_command("check-config", str(EXAMPLE)).stdout == "ok\n"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[engine]\nthraeds = 2\n")
    for arguments in (
        ["check-config", str(wrong)],
        ["serve", "--config", str(wrong)],
        ["config", "show", "--config", str(wrong)],
    ):
        result = run_command(*arguments)
        assert result.returncode == 78
        assert f"{wrong}:2" in result.stderr
        assert "did you mean 'threads'?" in result.stderr


def test_config_show_names_origins(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[log]\nlevel = "debug"\n')
    environment = clean_environment(GRADSYNC_ENGINE_THREADS="3", GRADSYNC_CONFIG=str(file))
    result = run_command("config", "show", "--origin", "--socket", "/tmp/x.sock", env=environment)
    lines = {line.split(" = ")[0]: line for line in result.stdout.splitlines() if " = " in line}
    assert lines["level"].endswith(f"# file {file}:2")
    assert lines["threads"].endswith("# environment GRADSYNC_ENGINE_THREADS")
    assert lines["socket"].endswith("# flag --server-socket")
    assert lines["history"].endswith("# default")


def test_an_unknown_variable_of_a_section_is_78() -> None:
    result = run_command("check-config", env=clean_environment(GRADSYNC_LOG_LEVLE="debug"))
    assert result.returncode == 78
    assert "did you mean GRADSYNC_LOG_LEVEL?" in result.stderr


def test_without_a_daemon_clients_exit_with_69(tmp_path: Path) -> None:
    address = str(tmp_path / "none.sock")
    for arguments in (["status", "--address", address], ["rpc", "status.get", "--address", f"unix:{address}"]):
        result = run_command(*arguments)
        assert result.returncode == 69
        assert address in result.stderr
        assert "gradsyncd serve" in result.stderr


def test_a_second_daemon_on_the_same_socket_is_75() -> None:
    with Daemon() as daemon:
        result = run_command("serve", "--socket", daemon.socket, "--health", "off")
        assert result.returncode == 75
        assert f"a daemon is already answering at '{daemon.socket}'" in result.stderr
        assert run_command("status", "--address", daemon.socket).returncode == 0


def test_a_socket_directory_that_cannot_be_made_is_78(tmp_path: Path) -> None:
    result = run_command("serve", "--socket", str(tmp_path / "no/such/gradsync.sock"), "--health", "off")
    assert result.returncode == 78
    assert str(tmp_path / "no/such") in result.stderr


def test_status_and_rpc_talk_to_the_daemon() -> None:
    with Daemon() as daemon:
        text = run_command("status", "--address", f"unix:{daemon.socket}")
        assert text.returncode == 0
        assert "serving" in text.stdout
        assert "no jobs" in text.stdout
        by_environment = run_command(
            "status", "--json", env=clean_environment(GRADSYNC_ADDRESS=f"unix:{daemon.socket}")
        )
        assert json.loads(by_environment.stdout)["pid"] == daemon.process.pid
        discover = run_command("rpc", "rpc.discover", "--address", daemon.socket)
        assert json.loads(discover.stdout)["openrpc"]
        unknown = run_command("rpc", "no.such", "--address", daemon.socket)
        assert unknown.returncode == 1
        assert unknown.stderr.startswith("gradsyncd: method_not_found: ")
        session = run_command("rpc", "job.detach", "--address", daemon.socket)
        assert session.returncode == 1
        assert "local_only" in session.stderr


def test_the_binary_is_the_one_that_was_asked_for() -> None:
    assert Path(BINARY).is_file()
