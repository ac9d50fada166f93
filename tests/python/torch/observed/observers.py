"""Mode observe in a test, which is more patient than a training run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gradsync.torch as gst
from gradsync.torch._reduced import _observer

PATIENT_S = 40.0


@pytest.fixture(autouse=True)
def observing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRADSYNC_MODE", "observe")
    monkeypatch.setattr(_observer, "PATIENCE_S", PATIENT_S)  # whatever else the machine does
    yield
    gst.close()


def init(address: str, model: Any, **options: Any) -> Any:
    return gst.init(model, **({"address": address, "job": "j", "rank": 0, "world_size": 1} | options))
