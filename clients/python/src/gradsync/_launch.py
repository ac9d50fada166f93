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
        UsageError: neither says it, a variable is not a number, or the job has ranks on another node.
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
    if world_size is None or rank is None or job is None:
        raise _not_known(world_size, rank, job)
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world size {world_size}: ranks count from 0 to world_size - 1")
    _refuse_several_nodes(environ, world_size)
    if restart_count is None:
        restart_count = _from(environ, "TORCHELASTIC_RESTART_COUNT") or 0
    return Launch(job=job, rank=rank, world_size=world_size, restart_count=restart_count)


def _not_known(world_size: int | None, rank: int | None, job: str | None) -> UsageError:
    sources = {
        "world_size= (or WORLD_SIZE)": world_size,
        "rank= (or RANK)": rank,
        "job= (or TORCHELASTIC_RUN_ID, MASTER_ADDR and MASTER_PORT)": job,
    }
    missing = " and ".join(source for source, value in sources.items() if value is None)
    return UsageError(
        f"attach() does not know {missing}; start with torchrun, pass them, "
        "or attach(world_size=1) for a single process"
    )


def _refuse_several_nodes(environ: Mapping[str, str], world_size: int) -> None:
    # A daemon sees the ranks of its own node: the others would be waited for until the deadline.
    local = _from(environ, "LOCAL_WORLD_SIZE")
    if local is not None and local < world_size:
        raise UsageError(
            f"this node runs {local} of the {world_size} ranks of the job (LOCAL_WORLD_SIZE={local}), but a job must "
            "have all its ranks on one node; start them all on this node, or leave gradsync out (where several "
            "launchers run on this one node, unset LOCAL_WORLD_SIZE in the ranks)"
        )


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
