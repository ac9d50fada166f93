"""What successive answers of status.get say together: how fast a job steps, and the norms of its last steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradsync._wire import decode_number

__all__ = ["History", "JobHistory"]

_NORMS = 48
_RATE_S = 10.0  # a rate is over so many seconds


@dataclass(slots=True)
class JobHistory:
    """One job, from one answer to the next."""

    norms: deque[float] = field(default_factory=lambda: deque(maxlen=_NORMS))  #: one for each answer with a new step
    _steps: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, job: Mapping[str, Any], now: float) -> None:
        steps = int(job["steps_committed"])
        if self._steps and steps < self._steps[-1][1]:
            self._steps.clear()  # the job was started again
        new = not self._steps or steps > self._steps[-1][1]
        self._steps.append((now, steps))
        while now - self._steps[0][0] > _RATE_S:
            self._steps.popleft()
        if new and steps > 0:
            self.norms.append(decode_number(job["norm"]))

    @property
    def steps_per_s(self) -> float | None:
        """None where one answer is all that there is."""
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        return (last - first) / (ended - began) if ended > began else None


class History:
    """All jobs of a daemon; those that are gone are forgotten."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, str], JobHistory] = {}
        self._incarnation = ""

    def add(self, status: Mapping[str, Any], now: float) -> None:
        if status["incarnation"] != self._incarnation:
            self._incarnation, self._jobs = status["incarnation"], {}
        seen = {(job["uid"], job["job"]): job for job in status["jobs"]}
        self._jobs = {key: self._jobs.get(key, JobHistory()) for key in seen}
        for key, job in seen.items():
            self._jobs[key].add(job, now)

    def of(self, job: Mapping[str, Any]) -> JobHistory:
        return self._jobs[job["uid"], job["job"]]
