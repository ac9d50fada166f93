"""What other policies would have done with the norms of a run, by the daemon's own: `gradsyncd policy replay`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from gradsync._launch._spawn import find_binary
from gradsync._wire import dump, encode_number
from gradsync.errors import ConnectionFailed, UsageError

from ._run import Run

__all__ = ["DEFAULT_POLICIES", "Replayed", "replay"]

DEFAULT_POLICIES = ("percentile", "zscore")
_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """One policy: its threshold at each point of the run, infinite where it had none, and which it would clip."""

    policy: str
    thresholds: tuple[float, ...]
    clipped: tuple[bool, ...]


def replay(run: Run, policies: Sequence[str]) -> list[Replayed] | str:
    """The policies' answers; a text where there is no gradsyncd, saying so.

    Raises:
        UsageError: a policy is none that there is.
    """
    if not policies:
        return []
    try:
        binary = find_binary()
    except ConnectionFailed as error:
        return f"no policy was tried: {error}"
    lines = "".join(dump({"step": point.step, "norm": encode_number(abs(point.norm))}) + "\n" for point in run.points)
    chosen = [part for policy in policies for part in ("--policy", policy)]
    try:
        done = subprocess.run(
            [binary, "policy", "replay", "-", *chosen, "--json"],
            input=lines,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no policy was tried: {error}"
    if done.returncode != 0:
        raise UsageError(f"--policy: {done.stderr.strip()}")
    steps = [json.loads(line)["policies"] for line in done.stdout.splitlines()]
    return [
        Replayed(
            policy,
            tuple(float(step[number]["threshold"]) for step in steps),
            tuple(bool(step[number]["clipped"]) for step in steps),
        )
        for number, policy in enumerate(policies)
    ]
