"""What the launcher said about this process. Reads the environment once, when asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UsageError

__all__ = ["Launch", "resolve_launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Which rank of which job this process is."""

    job: str
    rank: int
    world_size: int
    restart_count: int


def resolve_launch(
    job: str | None,
    rank: int | None,
    world_size: int | None,
    restart_count: int | None,
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """Arguments first, then torchrun's environment.

    Raises:
        UsageError: neither says it, or a variable is not a number.
    """
    environ = os.environ if environ is None else environ
    world_size = _from(environ, "WORLD_SIZE") if world_size is None else world_size
    alone = world_size == 1
    rank = _from(environ, "RANK") if rank is None else rank
    if rank is None and alone:
        rank = 0
    if job is None:
        job = _job_key(environ)
    if job is None and alone:
        job = f"local-{os.getpid()}"
    missing = [
        text
        for value, text in (
            (world_size, "world_size= (or WORLD_SIZE)"),
            (rank, "rank= (or RANK)"),
            (job, "job= (or TORCHELASTIC_RUN_ID, MASTER_ADDR and MASTER_PORT)"),
        )
        if value is None
    ]
    if missing or world_size is None or rank is None or job is None:
        raise UsageError(
            f"attach() does not know {' and '.join(missing)}; start with torchrun, pass them, "
            "or attach(world_size=1) for a single process"
        )
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world size {world_size}: ranks count from 0 to world_size - 1")
    if restart_count is None:
        restart_count = _from(environ, "TORCHELASTIC_RESTART_COUNT") or 0
    return Launch(job=job, rank=rank, world_size=world_size, restart_count=restart_count)


def _job_key(environ: Mapping[str, str]) -> str | None:
    # The run id alone is not enough: torchrun's default is "none" for every run.
    parts = [environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
    return "{}@{}:{}".format(*parts) if all(parts) else None


def _from(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"the environment says {name}={text!r}, which is not a number; fix it or pass the argument"
        ) from None
