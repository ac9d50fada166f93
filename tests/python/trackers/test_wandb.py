"""W&B in its offline mode: the file that it would upload, read back."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

BEGIN = """
import sys
sys.path.insert(0, {tests!r})
sys.path.insert(0, {here!r})
from tracked import step_report
from gradsync.trackers import _feed
from gradsync.trackers._report_log import ReportLog
_feed.INTERVAL_S = 0.02
def feed(log, steps):
    for step in steps:
        log.log(step, lambda: step_report(step, norm=step / 100, threshold=1.0, clipped=step > 100))
"""
SCRIPTS = {
    "its own run": """
log = ReportLog(0, "wandb")
feed(log, range(200))
log.close()
""",
    "a run of the script that logs steps": """
import time, wandb
log = ReportLog(0, "wandb")
with wandb.init() as run:
    for step in range(200):
        run.log({"loss": 1.0}, step=step)
        feed(log, [step])
        time.sleep(0.002)
    log.close()
""",
    "a run of the script that logs nothing": """
import wandb
with wandb.init() as run:
    log = ReportLog(0, run)
    feed(log, range(200))
    log.close()
""",
}


BLOCK_BYTES = 32_768
HEADER = struct.Struct("<IHB")  # checksum, length, kind of a piece


def records_of(data: bytes) -> Iterator[bytes]:
    """The records of W&B's file: a log of blocks as LevelDB has it, behind 7 bytes that name the format."""
    assert data[:4] == b":W&B"
    place, record = 7, b""
    while place + HEADER.size <= len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        place += HEADER.size
        record = (b"" if kind in (1, 2) else record) + data[place : place + length]
        place += length
        if kind in (1, 4):
            yield record


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The history of the one offline run of a folder."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for data in records_of(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_offline_run_has_the_curves(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parent
    script = BEGIN.format(tests=str(here.parent), here=str(here)) + SCRIPTS[kind]
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    found = {row["gradsync_step"]: row for row in rows if "grad_norm" in row}
    assert sorted(found) == [0, 50, 100, 150]
    for step, row in found.items():
        assert (row["grad_norm"], row["grad_clip_threshold"], row["grad_clipped"]) == (step / 100, 1.0, step > 100)
    if "logs steps" in kind:
        assert [row["_step"] for row in rows if "loss" in row] == [*range(200)]
