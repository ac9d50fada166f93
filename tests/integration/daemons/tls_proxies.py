"""What ends TLS in front of a daemon: a few lines of Python, and nginx with the configuration of `deploy/proxy`."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy/proxy/nginx.conf"
_CHUNK = 65536


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine, which is its own CA, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    return cert, key


def nginx() -> str:
    """Its path; the test is skipped where it cannot be had."""
    found = subprocess.run([ROOT / "scripts/unpacked.sh", "nginx"], capture_output=True, text=True, timeout=100)
    if found.returncode == 69:
        pytest.skip(found.stderr.strip())
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@contextlib.contextmanager
def python_proxy(target: str, cert: Path, key: Path) -> Iterator[int]:
    """Passes bytes on to HOST:PORT, and ends TLS; the port that it listens at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    host, port = target.rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, context, (host, int(port))), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_serve, args=(client, context, target), daemon=True).start()


def _serve(client: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    """One request at a time, as HTTP has it: what the client sends, and then the answer."""
    with (
        contextlib.suppress(OSError),
        context.wrap_socket(client, server_side=True) as outside,
        socket.create_connection(target, timeout=DEADLINE_S) as inside,
    ):
        back = threading.Thread(target=_copy, args=(inside, outside), daemon=True)
        back.start()
        _copy(outside, inside)
        back.join(DEADLINE_S)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def nginx_proxy(binary: str, target: str, cert: Path, key: Path, folder: Path) -> Iterator[int]:
    """nginx with the example, whose places and ports are those of the test; checked by `nginx -t` first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = EXAMPLE.read_text()
    for given, wanted in {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/gradsync/tls/cert.pem": str(cert),
        "/etc/gradsync/tls/key.pem": str(key),
        "127.0.0.1:9479;": f"{target};",
    }.items():
        assert site.count(given) == 1, given
        site = site.replace(given, wanted)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "scgi", "uwsgi"))
    whole = folder / "nginx.conf"
    whole.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; {temporary}\n{site}\n}}\n"
    )
    command = [binary, "-e", "stderr", "-c", str(whole), "-p", str(folder)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, "nginx ended"
        assert time.monotonic() < end, "nginx does not listen"
        time.sleep(0.02)
