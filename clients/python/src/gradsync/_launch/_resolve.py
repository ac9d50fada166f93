"""Which rank of which job this process is: arguments, torch's process group, and the environment of launchers.

The environment is read once, when asked. torch is not imported: where it has a process group, it is there already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gradsync.errors import UsageError

from ._job_name import job_name
from ._launchers import Launcher, number_in, read_launcher, starts_ranks
from ._nodes import coordinator_of, host_of_all_nodes, ranks_of_this_node
from ._process_group import ProcessGroup, process_group

__all__ = ["Launch", "rank_and_world", "resolve_launch"]

_AGREE_S = 300.0  # as long as a declaration waits for the other ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Which rank of which job this process is."""

    job: str
    rank: int
    world_size: int
    restart_count: int
    local_world_size: int  #: ranks of the job on this node; fewer than world_size: it spans nodes
    coordinator: str | None  #: HOST or HOST:PORT of rank 0's node, where the job spans nodes and somebody says it


def resolve_launch(
    job: str | None,
    rank: int | None,
    world_size: int | None,
    restart_count: int | None,
    environ: Mapping[str, str] | None = None,
    *,
    local_world_size: int | None = None,
    coordinator: str | None = None,
    timeout: float | None = None,
) -> Launch:
    """Arguments first, then torch's process group, then a launcher's environment, then a single process.

    Where a process group is there and `job` is not given, all its ranks call this, and have the name that rank 0 chose.
    Where nobody says how many ranks this node has, it has all of them.

    Raises:
        UsageError: nobody says it, two contradict each other, or rank 0 is on another node although this one has all
            ranks.
        DeclareTimeout: rank 0 named no job within `timeout`.
    """
    environ = os.environ if environ is None else environ
    launcher = read_launcher(environ)
    group = None if job is not None and rank is not None and world_size is not None else process_group()
    if group is not None:
        _refuse_contradictions(group, launcher, environ, job, rank, world_size)
    source = group or launcher
    alone = world_size == 1 or (source is None and rank is None and world_size is None and _is_alone(environ))
    if world_size is None:
        world_size = 1 if alone else None if source is None else source.world_size
    if rank is None:
        rank = source.rank if source is not None else 0 if alone else None
    if world_size is None or rank is None:
        raise _not_known(environ, world_size, rank, job)
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world size {world_size}: ranks count from 0 to world_size - 1")
    local = ranks_of_this_node(local_world_size, environ, launcher, world_size)
    spans_nodes = local < world_size
    if job is None:
        shared = None if launcher is None else launcher.shared
        host = host_of_all_nodes(environ) if spans_nodes else None
        if group is not None and group.world_size > 1:
            within = _AGREE_S if timeout is None else timeout
            job = group.agree_on(job_name(shared, host=host), within, spans_nodes=spans_nodes)
        elif shared is not None or world_size == 1:
            job = job_name(shared, host=host)
        else:
            raise _not_known(environ, world_size, rank, job)
    if restart_count is None:
        restart_count = 0 if launcher is None else launcher.restart_count
    return Launch(
        job=job,
        rank=rank,
        world_size=world_size,
        restart_count=restart_count,
        local_world_size=local,
        coordinator=coordinator_of(coordinator, environ) if spans_nodes else None,
    )


def rank_and_world(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The rank of this process and how many there are; where nobody says it, one."""
    environ = os.environ if environ is None else environ
    found = process_group() or read_launcher(environ)
    if found is not None:
        return found.rank, found.world_size
    return number_in(environ, "RANK") or 0, number_in(environ, "WORLD_SIZE") or 1


def _refuse_contradictions(
    group: ProcessGroup,
    launcher: Launcher | None,
    environ: Mapping[str, str],
    job: str | None,
    rank: int | None,
    world_size: int | None,
) -> None:
    given = {"rank": rank, "world_size": world_size}
    of_group = {"rank": group.rank, "world_size": group.world_size}
    for name, value in given.items():
        if value is not None and value != of_group[name] and job is None:
            raise UsageError(
                f"{name}={value} was passed, but torch's process group says {name} {of_group[name]}; leave it out, or "
                "pass job=, rank= and world_size= for a job of other ranks than those of the process group"
            )
    for name, variable in (("world_size", "WORLD_SIZE"), ("rank", "RANK")):
        said = number_in(environ, variable)
        if given[name] is None and said is not None and said != of_group[name]:
            raise UsageError(
                f"the environment says {variable}={said}, but torch's process group says {name} {of_group[name]}; "
                f"correct or unset {variable}, or pass {name}="
            )


def _is_alone(environ: Mapping[str, str]) -> bool:
    """Whether a process that nothing is said about may be taken for the only one.

    Raises:
        UsageError: it is probably one of several.
    """
    if any(name in environ for name in ("RANK", "WORLD_SIZE")):
        return False
    several = starts_ranks(environ)
    processes = sys.modules.get("multiprocessing.process")
    if several is None and processes is not None and processes.parent_process() is not None:
        several = "multiprocessing started this process"
    if several is not None:
        raise UsageError(
            f"{several}, and nobody says which rank of how many it is; call torch.distributed.init_process_group "
            "first, or pass job=, rank= and world_size= (world_size=1: it trains alone)"
        )
    return True


def _not_known(environ: Mapping[str, str], world_size: int | None, rank: int | None, job: str | None) -> UsageError:
    sources = {
        "world_size= (or WORLD_SIZE)": world_size,
        "rank= (or RANK)": rank,
        "job= (or MASTER_ADDR and MASTER_PORT)": job
        if job is not None
        else environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"),
    }
    missing = " and ".join(source for source, value in sources.items() if not value and value != 0)
    return UsageError(
        f"attach() does not know {missing}; start with torchrun, call torch.distributed.init_process_group first, "
        "pass them, or attach(world_size=1) for a single process"
    )
