"""The queue between training and a tracker: its bound, its thread, and what is said of an outage."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from tracked import INTERVAL_S, step_report

import gradsync
from gradsync.trackers._feed import Feed
from gradsync.trackers._record import Record
from gradsync.trackers._report_log import ReportLog

WAIT_S = 20.0


def record(step: int) -> Record:
    return Record(step, 0, {"grad_norm": float(step)}, {})


class Recorded:
    """A target that keeps what it gets, unless it is told to fail or to wait."""

    name = "the test"
    more = False

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.calls: list[int] = []
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = False

    def begin(self) -> None:
        self.began_on = threading.current_thread()

    def send(self, records: deque[Record]) -> None:
        self.sent_on = threading.current_thread()
        self.entered.set()
        self.gate.wait(WAIT_S)
        if self.broken:
            raise ConnectionError("nobody listens")
        self.calls.append(len(records))
        while records:
            self.steps.append(records.popleft().step)

    def close(self) -> None:
        self.closed = True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(INTERVAL_S / 4)


def test_a_thread_of_its_own_sends_what_waits_together_and_in_order() -> None:
    target = Recorded()
    feed = Feed(target)
    for step in range(20):
        feed.put(record(step))
    assert target.began_on is threading.current_thread()
    feed.close()
    assert target.steps == list(range(20))
    assert target.calls == [20]
    assert target.sent_on is not threading.current_thread()
    assert target.closed


def test_an_outage_is_said_once_and_what_was_kept_is_sent_after_it(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    target = Recorded()
    target.broken = True
    feed = Feed(target)
    for step in range(5):
        feed.put(record(step))
        target.entered.clear()
        assert target.entered.wait(WAIT_S)
    target.broken = False
    feed.put(record(5))
    until(lambda: len(target.steps) == 6)
    feed.close()
    assert target.steps == list(range(6))
    (said,) = [one.getMessage() for one in caplog.records]
    assert said == (
        "the test fails (ConnectionError: nobody listens); training goes on, and up to 1000 records are kept for it"
    )


def test_a_queue_is_bounded_and_the_oldest_are_dropped(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    target = Recorded()
    target.broken = True
    feed = Feed(target, capacity=10)
    for step in range(1000):
        feed.put(record(step))
    target.broken = False
    feed.close()
    assert len(target.steps) <= 20  # those that were being sent, and those that waited
    assert target.steps[-10:] == list(range(990, 1000))
    assert feed.lost == 1000 - len(target.steps)
    messages = [one.getMessage() for one in caplog.records]
    assert f"the test lacks {feed.lost} of the 1000 records of this run" in messages
    assert sum("the oldest is dropped" in one for one in messages) == 1
    assert len(messages) <= 3


def test_a_tracker_that_hangs_holds_neither_a_step_nor_the_end_up(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    target = Recorded()
    target.gate.clear()
    feed = Feed(target)
    feed.put(record(0))
    assert target.entered.wait(WAIT_S)
    began = time.monotonic()
    for step in range(1, 500):
        feed.put(record(step))
    feed.close(timeout=0.1)
    assert time.monotonic() - began < WAIT_S / 4  # the gate would hold it up for WAIT_S
    assert caplog.records[-1].getMessage() == "the test lacks 500 of the 500 records of this run"
    target.gate.set()


def test_what_the_script_has_not_closed_is_sent_at_its_end() -> None:
    script = """
from gradsync.trackers._report_log import ReportLog
from gradsync.trackers._feed import Feed
from gradsync.trackers._objects import CallTarget
from gradsync.trackers._record import Record
feed = Feed(CallTarget(lambda values, step: print(step, values, flush=True), "print"))
feed.put(Record(7, 0, {"grad_norm": 1.5}, {}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S * 3)
    assert (done.stdout, done.stderr) == ("7 {'grad_norm': 1.5}\n", "")


def test_a_forked_child_leaves_the_records_to_its_parent(tmp_path: Any) -> None:
    path = tmp_path / "run.jsonl"
    script = f"""
import os, sys
from gradsync.trackers._feed import Feed
from gradsync.trackers._lines import LinesTarget
from gradsync.trackers._record import Record
feed = Feed(LinesTarget({str(path)!r}))
feed.put(Record(7, 0, {{"grad_norm": 1.5}}, {{}}))
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=WAIT_S * 3)
    assert len(path.read_text().splitlines()) == 1


def test_every_fiftieth_step_is_logged_on_rank_0_alone(quick: None) -> None:
    got: dict[int, list[int]] = {0: [], 1: []}
    for rank, steps in got.items():
        log = ReportLog(rank, lambda values, step, steps=steps: steps.append(step))
        for step in range(120):
            log.log(step, lambda step=step: step_report(step))
        log.close()
    assert got == {0: [0, 50, 100], 1: []}
    assert not [one for one in threading.enumerate() if one.name == "gradsync-tracker"]


def test_a_resumed_run_goes_on_where_it_says(logged: Callable[..., None]) -> None:
    steps: list[int] = []
    logged(lambda values, step: steps.append(step), [step_report(step) for step in range(60)], first_step=1180)
    assert steps == [1200]


def test_a_report_is_decoded_only_where_it_is_due() -> None:
    log = ReportLog(0)
    log.add(lambda values, step: None, every=50)
    for step in range(1, 50):
        log.log(step, lambda: pytest.fail("nobody has asked for it"))
    log.close()


def test_nothing_that_a_tracker_is_made_of_reaches_training(caplog: pytest.LogCaptureFixture) -> None:
    def refuses(values: dict[str, float], step: int) -> None:
        raise ValueError(f"no step {step}")

    log = ReportLog(0, refuses)
    log.log(0, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    log.log(50, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    log.log(100, lambda: step_report(100))
    log.close()
    messages = [one.getMessage() for one in caplog.records]
    assert len(messages) == 3
    assert "step 0 cannot be logged" in messages[0]
    assert "fails (ValueError: no step 100); training goes on, such records are lost" in messages[1]
    assert "lacks 1 of the 1 records" in messages[2]


class StepFirst:
    def __init__(self) -> None:
        self.got: list[Any] = []

    def log(self, step: int, values: dict[str, float]) -> None:
        self.got.append((values, step))


class ValuesFirst(StepFirst):
    def log(self, values: dict[str, float], step: int) -> None:  # type: ignore[override]
        self.got.append((values, step))


class OfLightning(StepFirst):
    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.got.append((values, step))


class Writer(StepFirst):
    log = None  # type: ignore[assignment]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.got.append(({name: value}, step))


@pytest.mark.parametrize("kind", [StepFirst, ValuesFirst, OfLightning, Writer])
def test_objects_are_called_by_their_own_signature(kind: type[StepFirst], logged: Callable[..., None]) -> None:
    tracker = kind()
    logged(tracker, [step_report(50, norm=2.5)])
    merged = {name: value for values, _ in tracker.got for name, value in values.items()}
    assert merged == {"grad_norm": 2.5, "grad_clipped": 0.0}
    assert {step for _, step in tracker.got} == {50}


@pytest.mark.parametrize("norm", [math.inf, math.nan, -math.inf])
def test_no_infinite_number_reaches_a_tracker(norm: float, logged: Callable[..., None]) -> None:
    got: list[dict[str, float]] = []
    layers = [{"name": "head", "norm": "NaN"}, {"name": "body", "norm": 2.0}]
    text = "NaN" if math.isnan(norm) else "Infinity" if norm > 0 else "-Infinity"
    report = step_report(0, norm=text, threshold="Infinity", layers=layers, found_inf=True)
    logged(lambda values, step: got.append(values), [report], groups=True, layers=True)
    assert got == [
        {"grad_nonfinite": 1.0, "grad_clipped": 0.0, "grad_clipped_group/all": 0.0, "grad_norm_layer/body": 2.0}
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mlfow", "log_to='mlfow': give 'mlflow', 'mlflow:RUN_ID', 'tensorboard'"),
        ("tensorboard:", "log_to='tensorboard:': give"),
        (3, "log_to=3: give 'mlflow', 'tensorboard', 'wandb', a path that ends in .jsonl"),
        (b"run.jsonl", "log_to=b'run.jsonl': give"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_no_tracker_is_refused_on_every_rank(given: object, said: str, rank: int) -> None:
    with pytest.raises(gradsync.UsageError) as refused:
        ReportLog(rank, [given])
    assert said in str(refused.value)


@pytest.mark.parametrize("options", [{"every": 0}, {"every": True}, {"first_step": 1.5}])
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(gradsync.UsageError, match=next(iter(options))):
        ReportLog(0).add(print, **options)


def test_a_package_that_is_not_installed_is_named_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    with pytest.raises(
        gradsync.UsageError, match=r"mlflow is not installed here; pip install mlflow, or gradsync\[mlflow"
    ):
        ReportLog(1, "mlflow")
