"""A job over several nodes: how many of its ranks this node has, and at which address rank 0's node is."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from gradsync.errors import UsageError

from ._launchers import Launcher, number_in

__all__ = ["coordinator_of", "host_of_all_nodes", "node_name", "ranks_of_this_node"]

_ADDRESS = re.compile("[!-~]{1,256}")  # the daemon reads what is in it


def ranks_of_this_node(
    given: int | None, environ: Mapping[str, str], launcher: Launcher | None, world_size: int
) -> int:
    """The argument, else LOCAL_WORLD_SIZE, else what the launcher of these ranks says; all ranks where nobody says it.

    The environment may say more than all ranks: then the job has only some of the ranks that the launcher started.

    Raises:
        UsageError: the argument is not from 1 to world_size, or a variable is below 1.
    """
    if given is not None:
        if not 1 <= given <= world_size:
            raise UsageError(
                f"local_world_size={given} of world size {world_size}: give the number of ranks that the job has on "
                "this node, from 1 to world_size, or leave it out where it has all of them here"
            )
        return given
    local, variable = number_in(environ, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE"
    if local is None and launcher is not None and launcher.world_size == world_size:
        local, variable = launcher.local_world_size, launcher.local_variable
    if local is None:
        return world_size
    if local < 1:
        raise UsageError(
            f"the environment says {variable}={local}, but this rank is on this node; correct or unset {variable}, or "
            "pass local_world_size="
        )
    return min(local, world_size)


def coordinator_of(given: str | None, environ: Mapping[str, str]) -> str | None:
    """The argument, else GRADSYNC_COORDINATOR, else MASTER_ADDR; None where nobody says it.

    MASTER_PORT is the port of torch's store; the daemon adds its own.

    Raises:
        UsageError: the text is empty, too long, or has characters that no address has.
    """
    origin, text = "coordinator", given
    if text is None:
        origin, text = "GRADSYNC_COORDINATOR", environ.get("GRADSYNC_COORDINATOR")
    if text is None:
        origin, text = "MASTER_ADDR", environ.get("MASTER_ADDR") or None
    if text is not None and not _ADDRESS.fullmatch(text):
        raise UsageError(
            f"{origin}={text!r} is no address; give HOST or HOST:PORT of the node of rank 0, in at most 256 ASCII "
            "characters without spaces"
        )
    return text


def host_of_all_nodes(environ: Mapping[str, str]) -> str:
    """What the name of a job has as its host, equal on all nodes: MASTER_ADDR, else the word `nodes`."""
    return environ.get("MASTER_ADDR") or "nodes"


def node_name(environ: Mapping[str, str]) -> str:
    """What this node is called in messages: as its daemon is called by GRADSYNC_PEER_NODE, else by its host name."""
    return environ.get("GRADSYNC_PEER_NODE") or socket.gethostname()
