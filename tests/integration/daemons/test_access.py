"""Who may see and change what over TCP: tokens, roles, the lines of the audit, and TLS in front of a daemon."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from daemon import DEADLINE_S, Daemon, call, clean_environment, get, run_command
from tls_proxies import make_certificate, nginx, nginx_proxy, python_proxy

import gradsync
from gradsync import RemoteDaemon
from gradsync.errors import ConnectionFailed, LocalOnly, Unauthorized

METHODS = json.loads((Path(__file__).parents[3] / "docs/openrpc.json").read_text())["methods"]


def make_token(path: Path) -> str:
    made = run_command("token", "new", "--out", str(path))
    assert made.returncode == 0, made.stderr
    return path.read_text().strip()


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, Path]:
    full, reading = tmp_path / "token", tmp_path / "read-token"
    make_token(full)
    make_token(reading)
    return full, reading


@pytest.fixture
def daemon(tokens: tuple[Path, Path]) -> Iterator[Daemon]:
    full, reading = map(str, tokens)
    arguments = ("--tcp", "127.0.0.1:0", "--server-tcp-token-file", full, "--server-tcp-read-token-file", reading)
    with Daemon(*arguments) as running:
        yield running


def remote(daemon: Daemon, token: Path) -> RemoteDaemon:
    return RemoteDaemon(f"http://{daemon.fields['tcp']}", token_file=token, timeout=DEADLINE_S)


def audited(daemon: Daemon, method: str) -> str:
    """The next line of the audit about this method."""
    return daemon.wait_for_log(f"audit: method={method} ")["msg"]


# token new


def test_a_new_token_is_random_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = make_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(base64.urlsafe_b64decode(first + "=")) == 32
    again = run_command("token", "new", "--out", str(path))
    assert (again.returncode, path.read_text().strip()) == (1, first), "its users would lose access"
    assert "--force" in again.stderr
    assert first not in again.stderr + again.stdout
    replaced = run_command("token", "new", "--out", str(path), "--force")
    assert replaced.returncode == 0
    assert path.read_text().strip() != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_a_new_token_goes_to_standard_output_or_nowhere(tmp_path: Path) -> None:
    printed = run_command("token", "new")
    assert (printed.returncode, len(printed.stdout.strip())) == (0, 43)
    assert printed.stdout != run_command("token", "new").stdout
    nowhere = run_command("token", "new", "--out", str(tmp_path / "no" / "folder"))
    assert nowhere.returncode == 1
    assert "No such file" in nowhere.stderr


# who may what


def test_tcp_needs_a_token_file() -> None:
    refused = run_command("serve", "--tcp", "0.0.0.0:0", "--health", "off")
    assert refused.returncode == 78
    assert "server.tcp = '0.0.0.0:0' needs server.tcp_token_file" in refused.stderr
    assert "gradsyncd token new" in refused.stderr


def test_a_reader_sees_what_an_operator_sees(daemon: Daemon, tokens: tuple[Path, Path]) -> None:
    with gradsync.connect(daemon.socket) as client:
        client.attach(job="seen", rank=0, world_size=1)
        for token in tokens:
            far = remote(daemon, token)
            assert [job["job"] for job in far.status()["jobs"]] == ["seen"]
            assert far.stats("seen") == []


def test_a_reader_changes_nothing_whatever_the_method(daemon: Daemon, tokens: tuple[Path, Path]) -> None:
    reader = remote(daemon, tokens[1])
    reads, refused = set(), set()
    for method in (entry["name"] for entry in METHODS):
        try:
            reader.call(method, {"job": "none"} if method in ("stats.get", "plan.explain") else {})
            reads.add(method)
        except (Unauthorized, LocalOnly):
            refused.add(method)
        except gradsync.errors.UnknownJob:
            reads.add(method)
    assert reads == {"status.get", "stats.get", "plan.explain", "rpc.discover"}
    with pytest.raises(Unauthorized, match=r"log\.set_level changes something.*tcp_token_file"):
        reader.call("log.set_level", {"level": "debug"})
    assert remote(daemon, tokens[0]).call("log.set_level", {"level": "info"}) == {"previous": "info"}


def test_the_status_of_a_reader_is_refused_with_the_way_in(daemon: Daemon, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    make_token(wrong)
    with pytest.raises(Unauthorized, match=r"refuses the token of .*wrong.*\[server\] tcp_token_file"):
        remote(daemon, wrong).status()
    daemon.fields["health"] = daemon.fields["tcp"]
    connection = daemon.health()
    connection.request("GET", "/status")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert b"Authorization: Bearer" in answer.read()


def test_health_and_metrics_stay_open_on_their_port(daemon: Daemon, tokens: tuple[Path, Path]) -> None:
    connection = daemon.health()
    for page in ("/livez", "/readyz", "/healthz", "/metrics"):
        assert get(connection, page)[0] == 200
    assert "jobs" not in json.loads(get(connection, "/status")[1])
    connection.request("GET", "/status", headers={"Authorization": f"Bearer {tokens[1].read_text().strip()}"})
    assert json.loads(connection.getresponse().read())["jobs"] == []


def test_a_replaced_token_counts_from_the_next_request_on(daemon: Daemon, tokens: tuple[Path, Path]) -> None:
    before = tokens[1].with_name("before")
    before.write_text(tokens[1].read_text())
    assert run_command("token", "new", "--out", str(tokens[1]), "--force").returncode == 0
    with pytest.raises(Unauthorized):
        remote(daemon, before).status()
    assert remote(daemon, tokens[1]).status()["state"] == "serving"
    assert "is another one now" in daemon.wait_for_log("the token of [server] tcp_read_token_file")["msg"]


# the audit


def test_what_changes_more_than_a_step_is_in_the_log_with_its_caller(daemon: Daemon, tokens: tuple[Path, Path]) -> None:
    pid = f"uid={os.geteuid()} pid={os.getpid()}"
    with gradsync.connect(daemon.socket) as client:
        job = client.attach(job="seen", rank=0, world_size=1)
        line = audited(daemon, "job.attach")
        assert pid in line
        assert 'job="seen" rank=0 world_size=1' in line
        assert line.endswith("outcome=ok")
        with job.pause():
            pass
        for paused in ("true", "false"):
            line = audited(daemon, "job.pause")
            assert f'of_job="seen" of_rank=0 paused={paused} outcome=ok' in line
    assert 'of_job="seen"' in audited(daemon, "job.detach")
    call(daemon.unix(), "log.set_level", level="info")
    assert f'{pid} via=http level="info" outcome=ok' in audited(daemon, "log.set_level")
    remote(daemon, tokens[0]).call("log.set_level", {"level": "info"})
    assert "token=operator address=127.0.0.1 via=http" in audited(daemon, "log.set_level")
    with pytest.raises(Unauthorized):
        remote(daemon, tokens[1]).call("log.set_level", {"level": "info"})
    line = audited(daemon, "log.set_level")
    assert "token=reader" in line
    assert line.endswith("outcome=unauthorized")
    daemon.terminate()
    told = json.dumps(daemon.log)
    assert not any(token.read_text().strip() in told for token in tokens)


def test_a_stranger_cannot_fill_the_log_with_the_audit(daemon: Daemon, tokens: tuple[Path, Path]) -> None:
    reader = remote(daemon, tokens[1])
    batch = [{"jsonrpc": "2.0", "id": n, "method": "log.set_level", "params": {"level": "info"}} for n in range(64)]
    host, port = daemon.fields["tcp"].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=DEADLINE_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {tokens[1].read_text().strip()}"}
    for _ in range(50):
        connection.request("POST", "/rpc", json.dumps(batch), headers)
        assert len(json.loads(connection.getresponse().read())) == 64
    with contextlib.suppress(Unauthorized):
        reader.call("log.set_level", {"level": "info"})
    daemon.terminate()
    with contextlib.suppress(AssertionError):
        daemon.wait_for_log("nothing")
    lines = [line for line in daemon.log if line["msg"].startswith("audit: method=log.set_level")]
    assert 100 <= len(lines) < 50 * 64 / 2


# TLS in front


def run_python(env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


Proxy = Callable[[str, Path, Path, Path], AbstractContextManager[int]]


def by_python(target: str, cert: Path, key: Path, _: Path) -> AbstractContextManager[int]:
    return python_proxy(target, cert, key)


def by_nginx(target: str, cert: Path, key: Path, folder: Path) -> AbstractContextManager[int]:
    return nginx_proxy(nginx(), target, cert, key, folder)


@pytest.mark.parametrize("proxy", [by_python, by_nginx])
def test_a_proxy_ends_tls_and_the_token_goes_on(
    proxy: Proxy, daemon: Daemon, tokens: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path)
    with proxy(daemon.fields["tcp"], cert, key, tmp_path) as port:
        address = f"https://localhost:{port}"
        far = RemoteDaemon(address, token_file=tokens[1], ca_file=cert, timeout=DEADLINE_S)
        assert far.status()["pid"] == daemon.process.pid
        with pytest.raises(Unauthorized):
            far.call("log.set_level", {"level": "debug"})
        with pytest.raises(ConnectionFailed, match=r"certificate of .* is not trusted.*GRADSYNC_CA_FILE"):
            RemoteDaemon(address, token_file=tokens[1], timeout=DEADLINE_S).status()
        told = clean_environment(
            GRADSYNC_ADDRESS=address, GRADSYNC_TOKEN_FILE=str(tokens[1]), GRADSYNC_CA_FILE=str(cert)
        )
        shown = run_python(told, "-m", "gradsync", "status")
        assert f"pid {daemon.process.pid}: serving" in shown
