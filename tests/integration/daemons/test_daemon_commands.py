"""Commands that need no daemon, or say that there is none; exit codes and messages."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import BINARY, DEADLINE_S, Daemon, clean_environment, get, run_command
from raw import RawRank

import gradsync

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy/config/gradsyncd.toml"
ERRORS = ROOT / "docs/errors.md"
ERROR_CODES = ROOT / "tests/contract/error_codes.json"


def test_version_in_words_and_as_json() -> None:
    version = json.loads(run_command("version", "--json").stdout)
    assert list(version) == ["name", "version", "commit", "protocol", "features"]
    assert version["name"] == "gradsyncd"
    assert version["protocol"] == 1
    assert version["features"] == {"cpu": True, "cuda": False, "nccl": False}
    words = run_command("version").stdout
    assert words == (
        f"gradsyncd {version['version']} (commit {version['commit']}, protocol 1; CPU yes, CUDA no, NCCL no)\n"
    )
    assert run_command("--version").stdout == words


def commit_written(sources: Path, output: Path, given: str = "") -> str:
    """What the build would compile for a checkout in `sources`, or why it would not."""
    script = ROOT / "service/app/cli/commit.cmake"
    values = {"SOURCES": sources, "GIVEN": given, "TEMPLATE": script.with_name("commit.cpp.in"), "OUTPUT": output}
    done = subprocess.run(
        ["cmake", *(f"-D{key}={value}" for key, value in values.items()), "-P", script], capture_output=True, text=True
    )
    return done.stderr if done.returncode else re.findall(r'return "(.*)";', output.read_text())[0]


CLIENT = f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([os.environ['GRADSYNCD'], *sys.argv[1:]]))\n"


def test_a_bench_is_that_of_the_client_with_this_daemon(tmp_path: Path) -> None:
    client = tmp_path / "gradsync"
    client.write_text(CLIENT)
    client.chmod(0o755)
    with_client = clean_environment(PATH=str(tmp_path), GRADSYNCD="/elsewhere/gradsyncd")
    passed_on = json.loads(run_command("bench", env=with_client).stdout)
    assert passed_on == [os.path.realpath(BINARY), "bench", "--megabytes", "64", "--rounds", "12"]
    words = ("--address", "/run/s.sock", "--megabytes", "8", "--rounds", "3", "--json")
    passed_on = json.loads(run_command("bench", *words, env=with_client).stdout)
    assert sorted(passed_on[1:]) == sorted(["bench", *words])
    help_of_client = subprocess.run(
        [sys.executable, "-m", "gradsync", "bench", "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert set(words) & set(re.findall(r"--\w+", help_of_client)) == {word for word in words if word.startswith("--")}


def test_a_bench_without_the_client_says_where_it_comes_from(tmp_path: Path) -> None:
    done = run_command("bench", env=clean_environment(PATH=str(tmp_path)))
    assert (done.returncode, done.stdout) == (127, "")
    assert "cannot run 'gradsync bench'" in done.stderr
    assert "pip install gradsync" in done.stderr
    assert "gradsync bench" in run_command("bench", "--help").stdout
    assert run_command("bench", "--megabytes", "0").returncode == 64


def on_a_terminal(daemon: Daemon, *words: str, **more: str) -> str:
    """What `gradsyncd status` draws first."""
    ours, theirs = pty.openpty()
    command = [BINARY, "status", "--address", daemon.socket, *words]
    environment = clean_environment()
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=theirs, env={**environment, **more})
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # it has ended, and nothing of it is left
        while b"no process" not in drawn or not drawn.endswith(b"\n"):
            drawn += os.read(ours, 4096)
    if "--watch" in words:
        process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    return drawn.decode()


def test_a_status_is_in_colour_on_a_terminal_and_plain_elsewhere() -> None:
    with Daemon() as daemon, RawRank(daemon.socket, "llm", 1, 2):
        red, green, bold = "\x1b[31m", "\x1b[32m", "\x1b[1m"
        watched = on_a_terminal(daemon, "--watch")
        assert watched.startswith("\x1b[H\x1b[2J")
        assert f"{green}serving\x1b[0m" in watched
        assert f"job {bold}llm\x1b[0m" in watched
        assert f"{red}  rank 0: no process\x1b[0m" in watched
        assert f"rank 1     {green}attached     \x1b[0m pid " in watched
        assert "\x1b[3" not in on_a_terminal(daemon, NO_COLOR="1")
        plain = run_command("status", "--address", daemon.socket).stdout
        assert "\x1b" not in plain
        assert "rank 1     attached      pid " in plain


def test_the_commit_is_that_of_the_checkout_and_a_file_that_says_it_already_stays(tmp_path: Path) -> None:
    output = tmp_path / "commit.cpp"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    checkout = tmp_path / "checkout"
    subprocess.run([*git, "init", "-q", checkout], check=True)
    assert commit_written(checkout, output) == "unknown"  # nothing was committed
    subprocess.run([*git, "-C", checkout, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run(
        [*git, "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    assert commit_written(checkout, output) == head[:12]
    before = output.stat().st_mtime_ns
    assert commit_written(checkout, output) == head[:12]
    assert output.stat().st_mtime_ns == before
    assert commit_written(checkout, output, given="0123456789abcdef") == "0123456789ab"

    unpacked = checkout / "unpacked"  # sources without git, inside of another project's checkout
    unpacked.mkdir()
    assert commit_written(unpacked, output) == "unknown"
    assert "GRADSYNC_COMMIT='main' is not a commit" in commit_written(checkout, output, given="main")


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


@pytest.mark.parametrize(("clip", "said"), [(None, "no threshold"), (0.5, "threshold 0.5")])
def test_status_says_in_words_that_there_is_no_threshold(clip: float | None, said: str) -> None:
    with Daemon() as daemon, gradsync.connect(daemon.socket) as client:
        job = client.attach(job="one", rank=0, world_size=1)
        policy = None if clip is None else gradsync.Clip(max_norm=clip)
        grads = job.declare([gradsync.Tensor("w", (4,))], clip=policy)
        grads.input("w").memoryview()[:] = struct.pack("4f", 1, 1, 1, 1)
        grads.finish(ready="all")
        text = run_command("status", "--address", daemon.socket).stdout
        assert f"\n  norm 2, {said}, 1 tensors" in text
        page = get(daemon.unix(), "/")[1]
        assert f"<dt>threshold</dt><dd>{said.removeprefix('threshold ')}</dd>" in page
        assert not re.search(r"\binf(inity)?\b", text + page, re.IGNORECASE)
        (wire,) = json.loads(run_command("status", "--json", "--address", daemon.socket).stdout)["jobs"]
        assert wire["threshold"] == ("Infinity" if clip is None else clip)


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


def test_doctor_says_what_is_here_and_what_to_do() -> None:
    well = run_command("doctor", "--gpu-kernels", "off")
    assert (well.returncode, well.stderr) == (0, "")
    assert "note     GPUs are switched off" in well.stdout
    assert "ok       memory for gradients on CPUs: " in well.stdout
    missing = run_command("doctor", "--gpu-devices", "GPU-none", "--gpu-kernels", "/nowhere.so", "--json")
    assert missing.returncode == 1
    findings = json.loads(missing.stdout)
    assert {"level", "what", "hint"} == set(findings[0])
    assert any(f["level"] == "problem" and "there is no /nowhere.so" in f["what"] for f in findings), findings


def documented_errors() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `([a-z_]+)` (\|.*)\|$", ERRORS.read_text(), re.MULTILINE)
    return {kind: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)[1:]] for kind, rest in rows}


def words(text: str) -> list[str]:
    """Without the marks of links, and however the lines are broken."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("\\|", "|").split()


def test_every_kind_of_error_has_a_page_that_says_what_the_documents_say() -> None:
    documented = documented_errors()
    kinds = [row["kind"] for row in json.loads(ERROR_CODES.read_text())]
    assert run_command("explain").stdout.split() == kinds == list(documented)
    for kind, (code, http, _, meaning, way_out) in documented.items():
        page = run_command("explain", kind)
        assert page.returncode == 0, page.stderr
        head, cause, do = (part.strip() for part in re.split("\n\n", page.stdout)[:3])
        assert head == f"{kind} (JSON-RPC {code}, HTTP {http})"
        assert words(cause) == words(meaning)
        assert words(do)[3 : 3 + len(words(way_out))] == words(way_out)
        assert max(map(len, page.stdout.splitlines())) <= 80


def test_a_page_says_when_an_error_comes() -> None:
    page = run_command("explain", "rank_lost").stdout
    assert "When it comes, and what to do then" in page
    assert "  - a rank dies (signal, out of memory, exception): " in page
    assert "](" not in page


def test_an_error_names_its_page_and_a_slip_the_nearest_kind() -> None:
    with Daemon() as daemon:
        refused = run_command("rpc", "status.gte", "--address", daemon.socket)
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[1].endswith("(gradsyncd explain method_not_found)")
    slip = run_command("explain", "rank_losst")
    assert (slip.returncode, slip.stdout) == (64, "")
    assert "did you mean rank_lost?" in slip.stderr
    assert "did you mean rank_in_use, rank_lost?" in run_command("explain", "rank_").stderr
    assert "gradsyncd explain lists them" in run_command("explain", "42").stderr


@pytest.mark.parametrize(
    "command",
    [("blackbox", "analyze"), ("blackbox", "trace"), ("plan", "check"), ("policy", "replay", "--policy", "percentile")],
)
def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    said = run_command(*command, str(tmp_path))
    assert said.returncode == 64, said
    assert f"cannot read {tmp_path}: Is a directory" in said.stderr
