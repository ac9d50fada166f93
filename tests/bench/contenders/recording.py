"""The messages of one step, for a bare server to exchange as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def recorded(job: Any, step: Callable[[], object]) -> dict[str, Any]:
    """Method, params and result of its call, and its last notification where it sends any."""
    notify, step_call = job.notify, job.step_call
    frames: dict[str, Any] = {}

    def recorded_notify(method: str, params: dict[str, Any]) -> None:
        frames.update(notification={"method": method, "params": params})
        notify(method, params)

    def recorded_call(method: str, params: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        result = step_call(method, params, *arguments, **named)
        frames.update(method=method, params=params)
        frames.update(result=json.dumps(result, separators=(",", ":")))
        return result

    job.notify, job.step_call = recorded_notify, recorded_call
    step()
    job.notify, job.step_call = notify, step_call
    return frames
