"""A daemon that answers what it is told to: for commands that must not believe everything."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    answers: dict[str, object]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": self.server.answers[request["method"]]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def answering(socket: Path, answers: dict[str, object]) -> Iterator[Path]:
    """Results of methods by their names, over `POST /rpc`."""
    with _Server(str(socket), _Handler) as server:
        server.answers = answers
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield socket
        finally:
            server.shutdown()
            thread.join()
            socket.unlink()
