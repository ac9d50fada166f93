"""Trackers on a real MLflow: its stores, its server, and what happens when that is gone or slow."""

from __future__ import annotations

import contextlib
import http.server
import math
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tracked import step_report

from gradsync import UsageError
from gradsync._run_report._run import read_run
from gradsync.trackers import _feed
from gradsync.trackers._feed import Feed
from gradsync.trackers._mlflow import MlflowTarget
from gradsync.trackers._record import Record
from gradsync.trackers._report_log import ReportLog

pytest.importorskip("sqlalchemy", reason="the stores of MLflow need it")
mlflow = pytest.importorskip("mlflow")
pytestmark = [
    pytest.mark.filterwarnings("default"),  # those of MLflow are its own
    pytest.mark.timeout(300),  # it takes its time to be imported, and to make a database
]
START_S = 110.0


@pytest.fixture(params=["files", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty store, which MLflow uses."""
    uri = f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which MLflow keeps, and no longer recommends
    monkeypatch.chdir(tmp_path)
    with using(uri):
        yield uri


@contextlib.contextmanager
def using(uri: str) -> Iterator[None]:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        while mlflow.active_run() is not None:
            mlflow.end_run()
        mlflow.set_tracking_uri(before)


def history(run_id: str, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in mlflow.MlflowClient().get_metric_history(run_id, name)]


def clipped_run(steps: int) -> list[Any]:
    """A run in which every fourth logged step is clipped, and one has no finite norm."""
    reports = []
    for step in range(steps):
        norm = 0.5 + (step // 50 % 4) / 4
        reports.append(step_report(step, norm=norm, threshold=1.0, clipped=norm > 1.0))
    reports[100] = step_report(100, norm="NaN", threshold=1.0, found_inf=True)
    return reports


def test_the_query_of_the_source_gives_the_clip_rate(store: str, logged: Callable[..., None]) -> None:
    pandas = pytest.importorskip("pandas")
    with mlflow.start_run() as run:
        logged("mlflow", clipped_run(1000))
    # From here on it is the example of the source of these names, on a client without deprecated functions.
    client = mlflow.MlflowClient()
    metrics = client.get_metric_history(run.info.run_id, "grad_norm")
    df = pandas.DataFrame([{"step": m.step, "grad_norm": m.value} for m in metrics])
    threshold_metrics = client.get_metric_history(run.info.run_id, "grad_clip_threshold")
    clip_applied = client.get_metric_history(run.info.run_id, "grad_clipped")
    assert list(df["step"]) == [step for step in range(0, 1000, 50) if step != 100]
    assert df["grad_norm"].max() == 1.25
    assert {m.value for m in threshold_metrics} == {1.0}
    assert sum(m.value for m in clip_applied) / len(clip_applied) * 100 == 25.0
    assert history(run.info.run_id, "grad_nonfinite") == [(100, 1.0)]
    for name in client.get_run(run.info.run_id).data.metrics:
        assert all(math.isfinite(value) for _, value in history(run.info.run_id, name))


@pytest.mark.training
def test_names_of_groups_and_layers_are_made_such_as_mlflow_takes(store: str, logged: Callable[..., None]) -> None:
    layers = [{"name": "blocks[0]/attention", "norm": 0.5}, {"name": "blocks[0]", "norm": 0.7}]
    with mlflow.start_run() as run:
        logged("mlflow", [step_report(0, layers=layers)], groups=True, layers=True)
    metrics = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    assert metrics["grad_norm_layer/blocks_0_.attention"] == 0.5
    assert metrics["grad_norm_group/all"] == 2.0


@pytest.mark.parametrize("store", ["files"], indirect=True)  # a database takes its time for 3,000 rows
def test_more_layers_than_one_call_takes_arrive_whole(store: str, logged: Callable[..., None]) -> None:
    layers = [{"name": f"layer{number}", "norm": float(number)} for number in range(1500)]
    with mlflow.start_run() as run:
        logged("mlflow", [step_report(step, layers=layers) for step in (0, 50)], layers=True)
    metrics = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    assert len(metrics) == 1502
    assert history(run.info.run_id, "grad_norm_layer/layer1499") == [(0, 1499.0), (50, 1499.0)]


@pytest.mark.training
def test_without_a_run_it_makes_one_and_ends_it(tmp_path: Path, logged: Callable[..., None]) -> None:
    with using(f"sqlite:///{tmp_path}/runs.db"):
        logged("mlflow", [step_report(0)])
        assert mlflow.active_run() is None
        (run,) = mlflow.MlflowClient().search_runs(["0"])
        assert run.info.status == "FINISHED"
        assert run.data.metrics == {"grad_norm": 2.0, "grad_clipped": 0.0}


@pytest.mark.training
def test_a_resumed_run_has_one_curve(tmp_path: Path, logged: Callable[..., None]) -> None:
    with using(f"sqlite:///{tmp_path}/runs.db"):
        with mlflow.start_run() as run:
            logged("mlflow", [step_report(step) for step in range(100)])
        with mlflow.start_run(run_id=run.info.run_id):
            logged("mlflow", [step_report(step) for step in range(100)], first_step=100)
        logged(f"mlflow:{run.info.run_id}", [step_report(step) for step in range(100)], first_step=200)
        assert [step for step, _ in history(run.info.run_id, "grad_norm")] == [0, 50, 100, 150, 200, 250]


def test_a_report_is_made_of_a_run(tmp_path: Path, logged: Callable[..., None]) -> None:
    with using(f"sqlite:///{tmp_path}/runs.db"):
        with mlflow.start_run(run_name="the run") as run:
            logged("mlflow", clipped_run(1000))
        found = read_run(f"mlflow:{run.info.run_id}")
        assert (found.name, found.every, len(found.points), len(found.clipped)) == ("the run", 50, 20, 5)
        assert [point.step for point in found.nonfinite] == [100]
        with pytest.raises(UsageError, match="has no run 0000"):
            read_run("mlflow:" + "0" * 32)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A real tracking server on loopback."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        store = ["--backend-store-uri", f"sqlite:///{self._folder}/server.db"]
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            *store,
            *where,
            "--artifacts-destination",
            str(self._folder),
        ]
        self._log = (self._folder / "server.log").open("a")
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # seven processes of its own
        output = {"stdout": self._log, "stderr": self._log, "cwd": self._folder}
        self._process = subprocess.Popen(command, **output, env=environment, start_new_session=True)  # type: ignore[call-overload]
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            assert self._process.poll() is None, (self._folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self._folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)  # its workers too, which are of its group alone
        self._process.wait(30)
        self._log.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's client by itself tries a dead server again for minutes, and a feed waits for a minute."""
    monkeypatch.setattr(_feed, "LONGEST_INTERVAL_S", 0.2)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.mark.long
@pytest.mark.timeout(3 * START_S)
def test_a_server_that_is_killed_and_comes_back_lacks_nothing(
    tmp_path: Path, quick: None, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)
    try:
        with using(server.uri), mlflow.start_run() as run:
            log = ReportLog(0, "mlflow")
            log.log(0, lambda: step_report(0))
            until_logged(run.info.run_id, 1)
            server.kill()
            for step in range(50, 500):
                log.log(step, lambda step=step: step_report(step))
            until_said(caplog, "MLflow fails")
            server.start()
            until_logged(run.info.run_id, 10)
            log.close()
            assert [step for step, _ in history(run.info.run_id, "grad_norm")] == [*range(0, 500, 50)]
        said = [one.getMessage() for one in caplog.records if one.name == "gradsync"]
        assert len(said) == 1, said
    finally:
        server.kill()


def until_logged(run_id: str, count: int) -> None:
    deadline = time.monotonic() + START_S
    while len(history(run_id, "grad_norm")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    deadline = time.monotonic() + START_S
    while not any(text in one.getMessage() for one in caplog.records):
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Sleeps(http.server.BaseHTTPRequestHandler):
    """Answers nothing for as long as the test lasts."""

    def do_POST(self) -> None:
        self.server.asked.set()  # type: ignore[attr-defined]
        self.server.over.wait(START_S)  # type: ignore[attr-defined]

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def test_a_server_that_sleeps_holds_neither_a_step_nor_the_end_up(
    quick: None, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sleeps)
    server.asked, server.over = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with using(f"http://127.0.0.1:{server.server_address[1]}"):
            feed = Feed(MlflowTarget("0" * 32))
            feed.put(Record(0, 0, {"grad_norm": 1.0}, {}))
            assert server.asked.wait(START_S)
            began = time.monotonic()
            for step in range(1, 3000):
                feed.put(Record(step, 0, {"grad_norm": 1.0}, {}))
            feed.close(timeout=0.2)
            assert time.monotonic() - began < START_S / 10
        said = [one.getMessage() for one in caplog.records if one.name == "gradsync"]
        assert said[-1] == "MLflow lacks 3000 of the 3000 records of this run"
        assert len(said) == 2
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
