"""TensorBoard's event files, read back by TensorBoard's own reader; and files of lines. Both on a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tracked import step_report

from gradsync.trackers import _lines
from gradsync.trackers._report_log import ReportLog

FULL = """
import resource, signal, sys
from gradsync.trackers._feed import Feed
from gradsync.trackers._record import Record
from gradsync.trackers._targets import target_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
feed = Feed(target_of(sys.argv[1], None)())
for step in range(500):
    feed.put(Record(step, 1000, {"grad_norm": float(step)}, {}))
    if step == 9:
        feed._send()  # what has room
feed._send()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
feed.close()
"""


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder."""
    reader: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def tensorboard() -> None:
    pytest.importorskip("tensorboard")


def test_event_files_have_the_curves(tensorboard: None, tmp_path: Path, logged: Callable[..., None]) -> None:
    reports = [step_report(step, norm=step / 100, threshold=1.0, clipped=step > 100) for step in range(200)]
    logged(f"tensorboard:{tmp_path}", reports)
    assert scalars(tmp_path) == {
        "grad_norm": [(0, 0.0), (50, 0.5), (100, 1.0), (150, 1.5)],
        "grad_clipped": [(0, 0.0), (50, 0.0), (100, 0.0), (150, 1.0)],
        "grad_clip_threshold": [(0, 1.0), (50, 1.0), (100, 1.0), (150, 1.0)],
    }


def test_a_run_that_is_resumed_replaces_what_it_does_again(
    tensorboard: None, tmp_path: Path, logged: Callable[..., None]
) -> None:
    logged(f"tensorboard:{tmp_path}", [step_report(step, norm=1.0) for step in range(200)])
    os.rename(next(tmp_path.iterdir()), tmp_path / "events.out.tfevents.0000000001.before")
    logged(f"tensorboard:{tmp_path}", [step_report(step, norm=2.0) for step in range(200)], first_step=100)
    found = scalars(tmp_path)["grad_norm"]
    assert found == [(0, 1.0), (50, 1.0), (100, 2.0), (150, 2.0), (200, 2.0), (250, 2.0)]


def test_lines_keep_what_numbers_cannot_say(tmp_path: Path, logged: Callable[..., None]) -> None:
    path = tmp_path / "run.jsonl"
    inputs = [{"rank": 1, "count": 2, "micro_batch": None}]
    broken = step_report(2, norm="NaN", found_inf=True, nonfinite=[{"tensor": "w", "count": 2, "inputs": inputs}])
    logged(path, [step_report(1, threshold=1.5), broken], every=1)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first.pop("time_ms") <= second.pop("time_ms")
    assert first == {"step": 1, "grad_norm": 2.0, "grad_clipped": 0.0, "grad_clip_threshold": 1.5}
    assert second["grad_norm"] == "NaN"
    assert second["findings"] == ["nonfinite"]
    assert second["says"] == ["'w' of rank 1"]


@pytest.mark.parametrize("kind", ["lines", "tensorboard"])
def test_a_full_disk_is_said_once_and_leaves_whole_records(kind: str, tmp_path: Path) -> None:
    if kind == "tensorboard":
        pytest.importorskip("tensorboard")
    target = f"tensorboard:{tmp_path}/runs" if kind == "tensorboard" else str(tmp_path / "run.jsonl")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL, target], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("File too large") == 1, done.stderr
    if kind == "tensorboard":
        steps = [step for step, _ in scalars(tmp_path / "runs")["grad_norm"]]
    else:
        steps = [json.loads(line)["step"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert steps == list(range(500))  # after the outage, without a half line or a record twice


def test_a_folder_that_cannot_be_made_does_not_raise(
    tensorboard: None, tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    log = ReportLog(0, [f"tensorboard:{tmp_path}/file/runs", tmp_path / "file" / "run.jsonl"])
    for step in range(200):
        log.log(step, lambda step=step: step_report(step))
    log.close()
    said = [one.getMessage() for one in caplog.records]
    assert sum("NotADirectoryError" in one for one in said) == 2
    assert sum("lacks 4 of the 4 records" in one for one in said) == 2
    assert len(said) == 4


def test_what_was_written_by_half_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _lines.append(descriptor, b"whole\n")
    real = os.write

    def some(to: int, data: memoryview) -> int:
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "no space left")
        return real(to, data[:4])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", some)
        with pytest.raises(OSError, match="no space"):
            _lines.append(descriptor, b"too long for it\n")
    _lines.append(descriptor, b"next\n")
    os.close(descriptor)
    assert (tmp_path / "file").read_text() == "whole\nnext\n"
