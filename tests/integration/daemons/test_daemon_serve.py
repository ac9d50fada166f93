"""`gradsyncd serve`: pages, RPC over HTTP, signals, sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
from pathlib import Path

from daemon import DEADLINE_S, Daemon, call, get

METRICS_DOC = Path(__file__).parents[3] / "docs/operate/metrics.md"


def test_the_probes_pass_and_name_their_checks() -> None:
    with Daemon() as daemon:
        connection = daemon.health()
        for probe in ("/livez", "/readyz", "/startupz"):
            assert get(connection, probe) == (200, "ok")
            status, body = get(connection, f"{probe}?verbose")
            assert status == 200
            assert re.search(r"^\[\+\][a-z-]+ ok$", body, re.MULTILINE)
            assert body.endswith(f"{probe[1:]} check passed\n")
        status, body = get(connection, "/healthz")
        health = json.loads(body)
        assert health["state"] == "serving"
        assert health["jobs"] == 0
        assert health["incarnation"] == daemon.fields["incarnation"]
        assert get(connection, "/healthz", "POST")[0] == 405
        assert get(connection, "/rpc", "POST")[0] == 405
        assert get(connection, "/nowhere")[0] == 404


def test_readiness_needs_the_socket_file_and_can_be_told_not_to() -> None:
    with Daemon() as daemon:
        os.unlink(daemon.socket)
        connection = daemon.health()
        status, body = get(connection, "/readyz")
        assert status == 503
        assert "[-]socket-file failed" in body
        assert get(connection, "/readyz?exclude=socket-file")[0] == 200
        assert get(connection, "/livez")[0] == 200


def test_jobs_are_not_shown_over_tcp_but_over_the_socket() -> None:
    with Daemon() as daemon:
        over_tcp = json.loads(get(daemon.health(), "/status")[1])
        assert "jobs" not in over_tcp
        assert "gradsyncd status" in over_tcp["hint"]
        over_unix = json.loads(get(daemon.unix(), "/status")[1])
        assert over_unix["jobs"] == []
        assert over_unix["pid"] == daemon.process.pid
        assert "gradsyncd status" in get(daemon.health(), "/")[1]
        page = get(daemon.unix(), "/")[1]
        assert "No jobs" in page
        assert "<script" not in page


def test_a_browser_gets_the_page_and_its_files_and_everybody_else_the_text() -> None:
    with Daemon() as daemon:
        for connection in (daemon.health(), daemon.unix()):
            connection.request("GET", "/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
            response = connection.getresponse()
            document = response.read().decode()
            assert "script-src 'self'" in (response.getheader("Content-Security-Policy") or "")
            named = re.findall(r'(?:src|href)="(page/[^"]+)"', document)
            assert len(named) == 3
            for path in named:
                assert get(connection, f"/{path}")[0] == 200
            assert get(connection, "/text")[1].startswith("<!doctype html>")
            assert "<script" not in get(connection, "/text")[1]
        assert get(daemon.unix(), "/steps?job=none")[0] == 404
        assert get(daemon.unix(), "/steps?jobs=none")[0] == 400
        status, text = get(daemon.health(), "/steps?job=none")
        assert status == 401
        assert text.startswith("unauthorized: jobs are shown over the unix socket")


def test_metrics_are_those_of_the_document() -> None:
    with Daemon() as daemon:
        call(daemon.unix(), "status.get")
        status, text = get(daemon.health(), "/metrics")
        assert status == 200
        live = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        documented = dict(re.findall(r"^\| `([a-z_]+)` \| (\w+) \|", METRICS_DOC.read_text(), re.MULTILINE))
        assert live == documented
        assert re.search(r'^gradsync_build_info\{.*version="', text, re.MULTILINE)
        assert re.search(r"^process_resident_memory_bytes \d", text, re.MULTILINE)


def test_post_answers_methods_without_a_session() -> None:
    with Daemon() as daemon:
        connection = daemon.unix()
        result = call(connection, "status.get")["result"]
        assert isinstance(result, dict)
        assert result["state"] == "serving"
        error = call(connection, "job.detach")["error"]
        assert isinstance(error, dict)
        assert error["data"]["kind"] == "local_only"
        previous = call(connection, "log.set_level", level="debug")["result"]
        assert previous == {"previous": "info"}


def test_sigterm_ends_with_0_and_leaves_no_files() -> None:
    with Daemon() as daemon:
        fd_socket = daemon.socket.replace(".sock", ".fd.sock")
        assert stat.S_IMODE(os.stat(daemon.socket).st_mode) == 0o660
        assert stat.S_ISSOCK(os.stat(fd_socket).st_mode)
        assert daemon.terminate() == 0
        assert not os.path.exists(daemon.socket)
        assert not os.path.exists(fd_socket)
        messages = " ".join(line["msg"] for line in [daemon.wait_for_log("draining"), daemon.wait_for_log("stopped")])
        assert "signal 15" in messages


def test_sigint_drains_too() -> None:
    with Daemon() as daemon:
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(DEADLINE_S) == 0


def test_after_a_kill_the_stale_socket_is_replaced(tmp_path: Path) -> None:
    with Daemon(folder=str(tmp_path)) as first:
        first.process.kill()
        first.process.wait(DEADLINE_S)
        assert os.path.exists(first.socket)
        with Daemon(folder=str(tmp_path)) as second:
            assert call(second.unix(), "status.get")["result"]


def test_a_taken_health_port_is_a_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Daemon(health=f"127.0.0.1:{taken.getsockname()[1]}") as daemon:
            assert daemon.fields["health"] == "off"
            assert any(line["level"] == "warning" and "no health listener" in line["msg"] for line in daemon.log)
            assert call(daemon.unix(), "status.get")["result"]


def test_tcp_needs_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    with Daemon("--tcp", "127.0.0.1:0", "--server-tcp-token-file", str(token)) as daemon:
        daemon.fields["health"] = daemon.fields["tcp"]
        connection = daemon.health()
        assert get(connection, "/status")[0] == 401
        connection.request("GET", "/status", headers={"Authorization": f"Bearer {token.read_text().strip()}"})
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["jobs"] == []
