"""The alerts and the dashboard of deploy/, by promtool, on metrics that a daemon had in real runs.

A scrape stands for some minutes, in which every value went evenly from that of the scrape before it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon import DEADLINE_S, Daemon, get
from ranks_in_threads import on_all, whole
from raw import REPLICATED, RawClient, frame, request

import gradsync
from gradsync import Partial, Replicate

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "gradsync.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "gradsync.json"
INSTANCE = 'job="gradsync",instance="node1:9477"'

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def promtool() -> str:
    command = [ROOT / "scripts" / "unpacked.sh", "promtool"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if found.returncode == 69:
        pytest.skip(found.stderr.strip())
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


class Rank:
    """One of two: they add up their gradients, or each has a copy of the same."""

    def __init__(self, daemon: Daemon, rank: int, copies: bool) -> None:
        self.rank = rank
        self.client = gradsync.connect(daemon.socket)
        mesh = {"dp": 1, "tp": 2} if copies else {"dp": 2, "tp": 1}
        self.job = self.client.attach("job", rank, 2, meshes={"default": mesh})

    def declare(self) -> None:
        placements = {"dp": Partial("mean") >> Replicate(), "tp": Replicate()}
        weight = gradsync.Tensor("w", shape=(8,), placements=placements)
        self.grads = self.job.declare([weight], clip=gradsync.Clip(max_norm=100.0))

    def step(self, value: float = 1.0, wait_s: float = 0.0, **more: float) -> gradsync.StepReport:
        time.sleep(wait_s)
        self.grads.input("w").numpy()[:] = value
        self.grads.ready("w")
        return self.grads.finish(**more)  # type: ignore[arg-type]


class Run:
    """Two ranks beside a daemon, and what was scraped of it."""

    def __init__(self, daemon: Daemon, copies: bool) -> None:
        self.daemon = daemon
        self.scrapes: list[dict[str, float]] = []
        self.ranks = [Rank(daemon, rank, copies) for rank in range(2)]
        whole(on_all(self.ranks, Rank.declare))
        self.scrape()

    def steps(self, count: int = 1, body: Callable[[Rank], object] = Rank.step) -> None:
        for _ in range(count):
            whole(on_all(self.ranks, body))

    def scrape(self, minutes: int = 1) -> None:
        time.sleep(1.05)  # the daemon makes the page once a second at most
        status, text = get(self.daemon.health(), "/metrics")
        assert status == 200
        found = {"up": 1.0}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                found[series] = float(value)
        before = self.scrapes[-1] if self.scrapes else found
        for minute in range(1, minutes + 1):
            self.scrapes.append(
                {
                    name: before.get(name, value) + (value - before.get(name, value)) * minute / minutes
                    for name, value in found.items()
                }
            )

    def no_answer(self, minutes: int) -> None:
        with pytest.raises(ConnectionRefusedError):
            get(self.daemon.health(), "/metrics")
        self.scrapes += [{"up": 0.0}] * minutes


@contextlib.contextmanager
def running(*flags: str, copies: bool = False) -> Iterator[Run]:
    with contextlib.ExitStack() as leaving:
        daemon = leaving.enter_context(Daemon(*flags))
        run = Run(daemon, copies=copies)
        for rank in run.ranks:
            leaving.callback(rank.client.abandon)
        yield run


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with running(copies=getattr(request, "param", False)) as run:
        yield run


def with_labels(series: str) -> str:
    name, _, labels = series.partition("{")
    return f"{name}{{{labels[:-1] + ',' if labels else ''}{INSTANCE}}}"


def firing(promtool: str, folder: Path, scrapes: list[dict[str, float]]) -> set[str]:
    """The alerts that fire at the last scrape: those without which promtool's test of these metrics fails."""
    series = sorted({name for scrape in scrapes for name in scrape})
    inputs = [
        {
            "series": with_labels(name),
            "values": " ".join("_" if name not in scrape else repr(scrape[name]) for scrape in scrapes),
        }
        for name in series
    ]
    named = re.findall(r"- alert: (\w+)", RULES.read_text())
    found = set()
    for alert in named:
        case = {
            "eval_time": f"{len(scrapes) - 1}m",
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0',
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        test = {"interval": "1m", "input_series": inputs, "promql_expr_test": [case]}
        file = folder / f"{alert}.json"  # YAML holds JSON
        file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
        done = subprocess.run(
            [promtool, "test", "rules", file], capture_output=True, text=True, timeout=100, check=False
        )
        said = done.stdout + done.stderr
        assert "SUCCESS" in said or "got: nil" in said or "got:[]" in said.replace(" ", ""), said
        if done.returncode == 0:
            found.add(alert)
    return found


def test_nothing_fires_in_a_healthy_run(run: Run, promtool: str, tmp_path: Path) -> None:
    for _ in range(7):
        run.steps(2)
        run.scrape(10)
    assert firing(promtool, tmp_path, run.scrapes) == set()


def test_ranks_that_do_nothing(run: Run, promtool: str, tmp_path: Path) -> None:
    run.steps(3)
    run.scrape()
    run.scrape(31)
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncStalled"}


VICTIM = """
import sys, time, gradsync
from gradsync import Partial, Replicate
job = gradsync.connect(sys.argv[1]).attach("job", 1, 2, meshes={"default": {"dp": 2, "tp": 1}})
placements = {"dp": Partial("mean") >> Replicate(), "tp": Replicate()}
job.declare([gradsync.Tensor("w", shape=(8,), placements=placements)], clip=gradsync.Clip(max_norm=100.0))
print("declared", flush=True)
time.sleep(100)
"""


def test_a_rank_that_is_killed(run: Run, promtool: str, tmp_path: Path) -> None:
    run.steps(3)
    run.scrape()
    run.ranks[1].client.abandon()
    command = [sys.executable, "-c", VICTIM, run.daemon.socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        run.ranks[0].declare()
        assert victim.stdout is not None
        assert victim.stdout.readline() == "declared\n"
        victim.kill()
    end = time.monotonic() + DEADLINE_S
    while run.scrapes[-1]["gradsync_ranks_lost_total"] == 0:
        assert time.monotonic() < end, "the daemon has counted no lost rank"
        run.scrape()
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncRankLost"}


def test_gradients_that_are_not_finite(run: Run, promtool: str, tmp_path: Path) -> None:
    run.steps(3)
    run.scrape()
    run.steps(1, lambda rank: rank.step(math.nan if rank.rank == 1 else 1.0))
    run.scrape()
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncNotFinite"}


@pytest.mark.parametrize("run", [True], indirect=True, ids=["copies"])
def test_copies_that_differ(run: Run, promtool: str, tmp_path: Path) -> None:
    run.steps(1)
    run.scrape()
    run.steps(1, lambda rank: rank.step(1.0 + rank.rank))
    run.scrape()
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncDiverged"}


def test_steps_that_fail(run: Run, promtool: str, tmp_path: Path) -> None:
    run.steps(3)
    run.scrape()
    for _ in range(6):
        failed = on_all(run.ranks, lambda rank: rank.step(scale=1.0 + rank.rank))
        assert all(isinstance(each, gradsync.errors.StepMismatch) for each in failed), failed
    run.scrape()
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncStepsFail"}


def test_a_rank_that_the_others_wait_for(run: Run, promtool: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    run.steps(10, lambda rank: rank.step(wait_s=0.0 if rank.rank == 0 else 0.4))
    took_s = time.monotonic() - begin
    run.scrape(25)
    first = run.scrapes[0]
    for name in ("gradsync_step_wait_seconds_sum", "gradsync_step_seconds_sum"):  # 25 minutes of such steps
        for scrape in run.scrapes[1:]:
            scrape[name] = first[name] + (scrape[name] - first[name]) * 25 * 60 / took_s
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncWaitsForARank"}


def test_a_run_that_clips_every_step(run: Run, promtool: str, tmp_path: Path) -> None:
    for _ in range(7):
        run.steps(2, lambda rank: rank.step(1e6))
        run.scrape(10)
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncClipsEveryStep"}


def send_large_messages(address: str, over: threading.Event) -> None:
    """One after the other, so that the io thread is mostly within the turn that reads one."""
    tensor = {"name": "layers.weight", "shape": [4], "dtype": "float32", "mesh": "m", "placements": REPLICATED}
    message = frame(request(1, "gradients.declare", tensors=[tensor] * 5000))
    with RawClient(address, initialize=True) as client:
        while not over.is_set():
            client.send(message)
            client.message()


def test_an_io_thread_that_gets_no_processor(run: Run, promtool: str, tmp_path: Path) -> None:
    """The daemon is stopped for longer than a turn may take, until enough stops fell into a turn: about one in two."""
    held = 'gradsync_io_long_turns_total{why="held_up"}'
    run.steps(3)
    run.scrape()
    over = threading.Event()
    sender = threading.Thread(target=send_large_messages, args=(run.daemon.socket, over))
    sender.start()
    try:
        end = time.monotonic() + DEADLINE_S
        while run.scrapes[-1][held] - run.scrapes[0][held] <= 10:
            assert time.monotonic() < end, f"{run.scrapes[-1][held]} turns of the io thread were held up"
            del run.scrapes[2:]
            for _ in range(12):
                run.daemon.process.send_signal(signal.SIGSTOP)
                time.sleep(0.06)
                run.daemon.process.send_signal(signal.SIGCONT)
                time.sleep(0.02)
            run.scrape()
    finally:
        over.set()
        sender.join()
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncIoThreadHeld"}


def test_a_daemon_that_is_gone(run: Run, promtool: str, tmp_path: Path) -> None:
    run.steps(3)
    run.scrape()
    run.daemon.process.kill()
    run.daemon.process.wait()
    run.no_answer(5)
    assert firing(promtool, tmp_path, run.scrapes) == {"GradsyncDown"}


def dashboard_expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def asked_for(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:gradsync|process)_\w+", expression)) - {"process_cpu"}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    with running("--engine-job-gauges", "1") as run:
        run.steps(2)
        run.scrape()
    known = {series.partition("{")[0] for series in run.scrapes[-1]}
    assert {"gradsync_job_grad_norm", "gradsync_job_grad_clip_threshold"} <= asked_for(
        "\n".join(dashboard_expressions())
    )
    for expression in [*dashboard_expressions(), RULES.read_text()]:
        assert asked_for(expression) <= known, asked_for(expression) - known


def test_the_expressions_of_the_dashboard_are_read_by_prometheus(promtool: str, tmp_path: Path) -> None:
    fixed = [
        each.replace("$__rate_interval", "5m").replace('instance=~"$instance"', 'instance=~".*"')
        for each in dashboard_expressions()
    ]
    rules = [{"record": f"dashboard:{number}", "expr": each} for number, each in enumerate(fixed)]
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
