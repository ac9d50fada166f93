"""`gradsync.RemoteDaemon` against scripted answers; test_access.py of tests/integration has it against a daemon."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gradsync import RemoteDaemon, UsageError
from gradsync._cli import main
from gradsync.errors import ConnectionFailed, InvalidParams, Unauthorized

TOKEN = "a-token-of-sixteen-letters"
STATUS = {"version": "0.1.0", "pid": 7, "state": "serving", "uptime_s": 1.0, "jobs": []}


class Scripted(BaseHTTPRequestHandler):
    answer: tuple[int, bytes]
    seen: list[tuple[str, str | None, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers["Authorization"], body))
        status, text = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    Scripted.seen = []
    Scripted.answer = (200, json.dumps({"jsonrpc": "2.0", "id": 1, "result": STATUS}).encode())
    with HTTPServer(("127.0.0.1", 0), Scripted) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def address(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_call_brings_the_token_and_has_the_result(server: HTTPServer, token: Path) -> None:
    daemon = RemoteDaemon(f"{address(server)}/behind/a/proxy/", token_file=token)
    assert daemon.status() == STATUS
    (path, authorization, body) = Scripted.seen[0]
    assert (path, authorization) == ("/behind/a/proxy/rpc", f"Bearer {TOKEN}")
    assert body == {"jsonrpc": "2.0", "id": 1, "method": "status.get", "params": {}}


def test_a_new_token_is_used_by_the_next_call(server: HTTPServer, token: Path) -> None:
    daemon = RemoteDaemon(address(server), token_file=token)
    daemon.status()
    token.write_text("another-token-of-letters")
    daemon.status()
    assert [seen[1] for seen in Scripted.seen] == [f"Bearer {TOKEN}", "Bearer another-token-of-letters"]


def test_errors_of_the_daemon_are_typed(server: HTTPServer, token: Path) -> None:
    daemon = RemoteDaemon(address(server), token_file=token)
    error = {"code": -32602, "message": "no such field", "data": {"kind": "invalid_params", "hint": "look"}}
    Scripted.answer = (400, json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode())
    with pytest.raises(InvalidParams, match="no such field; look"):
        daemon.call("stats.get", {"job": "j", "lats": 1})
    Scripted.answer = (401, b"unauthorized: send the header 'Authorization: Bearer <token>'")
    with pytest.raises(Unauthorized, match=r"refuses the token of .*token: unauthorized: send the header"):
        daemon.status()
    for status, text in ((404, b"<h1>not here</h1>"), (200, b"[]"), (502, b"")):
        Scripted.answer = (status, text)
        with pytest.raises(ConnectionFailed, match=f"answered HTTP {status}") as caught:
            daemon.status()
        assert caught.value.reason == "not_gradsync"


def test_a_daemon_that_is_not_there_is_named(token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=f"http://127.0.0.1:{port} cannot be reached.*Connection refused"):
        RemoteDaemon(f"http://127.0.0.1:{port}", token_file=token).status()


def test_one_that_hangs_is_given_up(token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        daemon = RemoteDaemon(f"http://127.0.0.1:{silent.getsockname()[1]}", token_file=token, timeout=0.05)
        with pytest.raises(ConnectionFailed, match=r"did not answer within 0\.05 s") as caught:
            daemon.status()
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize(
    "wrong", ["node7:9479", "https://", "http://a b", "ftp://node7", "http://node7:x", "http://u@node7", "http://n?q"]
)
def test_what_is_no_address_is_refused(wrong: str, token: Path) -> None:
    with pytest.raises(UsageError, match="no address of a daemon over HTTP"):
        RemoteDaemon(wrong, token_file=token)


def test_a_token_has_to_be_there_and_be_one_word(
    server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADSYNC_TOKEN_FILE", raising=False)
    with pytest.raises(UsageError, match="asks for a token: set GRADSYNC_TOKEN_FILE"):
        RemoteDaemon(address(server))
    monkeypatch.setenv("GRADSYNC_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"cannot be read: .*No such file"):
        RemoteDaemon(address(server)).status()
    (tmp_path / "none").write_text("two words")
    with pytest.raises(UsageError, match="holds no token"):
        RemoteDaemon(address(server)).status()
    assert Scripted.seen == []


def test_a_token_that_the_network_can_read_is_a_warning(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gradsync"):
        RemoteDaemon("http://127.0.0.1:1", token_file=token)
        RemoteDaemon("https://node7", token_file=token)
        assert caplog.messages == []
        RemoteDaemon("http://node7:9479", token_file=token)
    assert "http://node7:9479 is not encrypted" in caplog.text


def test_certificates_that_cannot_be_read_are_named(token: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the certificates in .*none"):
        RemoteDaemon("https://node7", token_file=token, ca_file=tmp_path / "none")


def test_the_status_of_a_remote_daemon(
    server: HTTPServer, token: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--address", address(server), "--token-file", str(token)]) == 0
    assert capsys.readouterr().out == "gradsyncd 0.1.0 pid 7: serving, up 1 s\n"
    monkeypatch.setenv("GRADSYNC_ADDRESS", address(server))
    monkeypatch.setenv("GRADSYNC_TOKEN_FILE", str(token))
    assert main(["status"]) == 0
    monkeypatch.setenv("GRADSYNC_TOKEN_FILE", str(token.with_name("none")))
    assert main(["status"]) == 1
    assert "cannot be read" in capsys.readouterr().err
