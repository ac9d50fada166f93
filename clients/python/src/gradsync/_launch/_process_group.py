"""torch's process group, where torch has been imported and one is initialised; ranks agree on a name over its store."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsync._wire_errors import local_error
from gradsync.errors import ConnectionLost, DeclareTimeout, UsageError

__all__ = ["ProcessGroup", "process_group", "store_of_group"]

_KEY = "gradsync/job"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.1


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The default group of torch.distributed."""

    rank: int
    world_size: int
    _distributed: Any

    def agree_on(self, name: str, timeout: float, *, spans_nodes: bool) -> str:
        """Rank 0's name, on every rank. No collective, so no backend and no device takes part: rank 0 waits for nobody.

        Raises:
            UsageError: rank 0 is on another node, and nobody said that the job spans nodes.
            DeclareTimeout: rank 0 has not called this.
            ConnectionLost: the store of the group is gone.
        """
        said = json.dumps({"job": name, "boot_id": _boot_id()})
        try:
            store = self._distributed.distributed_c10d._get_default_store()
            if store is None:  # MPI has none
                said = self._broadcast(said)
            elif self.rank == 0:
                store.set(_KEY, said)
            else:
                said = _wait_for(store, timeout)
        except RuntimeError as error:
            raise ConnectionLost(
                f"rank {self.rank} cannot agree with rank 0 on the name of the job over torch's process group: "
                f"{error}; see why rank 0 ended, or pass job="
            ) from error
        agreed: dict[str, str] = json.loads(said)
        if not spans_nodes and agreed["boot_id"] != _boot_id():
            raise UsageError(
                f"rank {self.rank} is on another node than rank 0 (boot id {_boot_id()}, not {agreed['boot_id']}), but "
                "nobody says how many ranks of the job this node has; set LOCAL_WORLD_SIZE on every rank, or pass "
                "local_world_size="
            )
        return agreed["job"]

    def _broadcast(self, said: str) -> str:
        box = [said]
        self._distributed.broadcast_object_list(box, src=0)
        return box[0]


def process_group() -> ProcessGroup | None:
    """None: there is none, or torch has not been imported."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return ProcessGroup(distributed.get_rank(), distributed.get_world_size(), distributed)


def store_of_group() -> Any:
    """The store of the default group, now; None where there is none. Keep no reference: it ends with the group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


def _wait_for(store: Any, timeout: float) -> str:
    # `store.wait` would keep Ctrl-C and every other thread that uses the store from getting in.
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while not store.check([_KEY]):
        if time.monotonic() + pause > deadline:
            raise local_error(
                DeclareTimeout,
                f"rank 0 has not named the job within {timeout:g} s",
                "let every rank of the process group attach, at about the same time, or pass job=",
                ranks=[0],
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    found: bytes = store.get(_KEY)
    return found.decode()


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
