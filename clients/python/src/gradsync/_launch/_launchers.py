"""What launchers put into the environment of the ranks that they start: torchrun, Open MPI, Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gradsync.errors import UsageError

__all__ = ["Launcher", "number_in", "read_launcher", "starts_ranks"]

_INTERACTIVE = ("bash", "interactive")  # names that Slurm gives to the jobs of shells
_ATTEMPT = re.compile(r"(.*)/attempt_\d+/\d+/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What one of them says of this process."""

    rank: int
    world_size: int
    shared: str | None  #: equal on all ranks and, where the launcher has it, of this run alone
    local_world_size: int | None = None  #: ranks on this node
    local_variable: str = "LOCAL_WORLD_SIZE"
    restart_count: int = 0


def read_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that is nearest to this process: torchrun may run under the others, mpirun under Slurm.

    Raises:
        UsageError: a variable is not a number.
    """
    return _torchrun(environ) or _open_mpi(environ) or _slurm(environ)


def starts_ranks(environ: Mapping[str, str]) -> str | None:
    """What says that this process is one of several, although `read_launcher` does not know which."""
    for name in ("PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_NRANKS"):
        count = number_in(environ, name)
        if count is not None and count > 1:
            return f"an MPI launcher started {count} processes ({name}={count})"
    return None


def number_in(environ: Mapping[str, str], name: str) -> int | None:
    """The number that a variable holds; None: it is not set.

    Raises:
        UsageError: it holds something else.
    """
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"the environment says {name}={text!r}, which is not a number; fix it or pass the argument"
        ) from None


def _torchrun(environ: Mapping[str, str]) -> Launcher | None:
    rank, world_size = number_in(environ, "RANK"), number_in(environ, "WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    local = number_in(environ, "LOCAL_WORLD_SIZE")
    return Launcher(
        rank=rank,
        world_size=world_size,
        shared=_of_this_torchrun(environ, local == world_size) or _rendezvous(environ),
        local_world_size=local,
        restart_count=number_in(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
    )


def _of_this_torchrun(environ: Mapping[str, str], only_agent: bool) -> str | None:
    # One agent has one folder of error files in all its restarts. Its run id is "none" and its port 29500 in every run.
    found = _ATTEMPT.fullmatch(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    return None if found is None or not only_agent else f"{environ.get('TORCHELASTIC_RUN_ID')} {found[1]}"


def _rendezvous(environ: Mapping[str, str]) -> str | None:
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"{environ.get('TORCHELASTIC_RUN_ID', '')}@{address}:{port}" if address and port else None


def _open_mpi(environ: Mapping[str, str]) -> Launcher | None:
    rank = number_in(environ, "OMPI_COMM_WORLD_RANK")
    world_size = number_in(environ, "OMPI_COMM_WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    return Launcher(
        rank=rank,
        world_size=world_size,
        shared=next((f"{name}={environ[name]}" for name in names if environ.get(name)), None) or _rendezvous(environ),
        local_world_size=number_in(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        local_variable="OMPI_COMM_WORLD_LOCAL_SIZE",
    )


def _slurm(environ: Mapping[str, str]) -> Launcher | None:
    # A batch script, a shell and what they start have a SLURM_PROCID too; steps, which srun starts, have an id besides.
    rank, world_size = number_in(environ, "SLURM_PROCID"), number_in(environ, "SLURM_STEP_NUM_TASKS")
    step = environ.get("SLURM_STEP_ID")
    if rank is None or world_size is None or not step or environ.get("SLURM_JOB_NAME") in _INTERACTIVE:
        return None
    nodes = number_in(environ, "SLURM_STEP_NUM_NODES") or 1
    return Launcher(
        rank=rank,
        world_size=world_size,
        shared=f"{environ.get('SLURM_CLUSTER_NAME', '')} {environ.get('SLURM_JOB_ID', '')}.{step}",
        local_world_size=_tasks_of_this_node(environ) if nodes > 1 else None,
        local_variable="SLURM_STEP_TASKS_PER_NODE",
        restart_count=number_in(environ, "SLURM_RESTART_COUNT") or 0,
    )


def _tasks_of_this_node(environ: Mapping[str, str]) -> int | None:
    # "2(x3),1": three nodes with two tasks each, then one with one.
    node = number_in(environ, "SLURM_NODEID") or 0
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        node -= int(nodes or 1)
        if node < 0:
            return int(tasks)
    return None
