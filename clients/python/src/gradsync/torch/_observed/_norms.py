"""Norms of which every rank has a part: ranks show theirs to each other without a collective, in shared memory on one
node and over the store of torch's process group between nodes.

`clip_grad_norm_` of DTensors returns a norm that is not summed over ranks yet. To sum it, every rank would have to take
part in a collective, also one that observes nothing; so each writes its part, and reads those of the others when the
daemon has answered, which it does after all have asked.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gradsync._audit._world import combined
from gradsync._launch._process_group import store_of_group
from gradsync._launch._resolve import Launch

__all__ = ["Norms", "PartNorms", "StoredNorms", "norms_of"]

_SLOT = struct.Struct("<qd")
_SLOTS = 64  # steps that are kept; no rank is more than one ahead of an answer
_MANY = 64  # ranks; each of more would read as many numbers from one store
_LATE_S, _PAUSE_S = 0.02, 0.001


class Norms(Protocol):
    """What every rank has a part of."""

    def put(self, step: int, value: float) -> None:
        """Called before the daemon is asked about that step."""

    def whole(self, step: int, ranks: Sequence[int], p: float) -> float | None:
        """The norm of all parts of these ranks, when the daemon has answered; None where it is not known here."""


def norms_of(folder: Path, launch: Launch) -> Norms:
    """In memory, where all ranks are on this node."""
    if launch.local_world_size < launch.world_size:
        return StoredNorms(launch)
    return PartNorms(folder, launch.job, launch.rank)


class StoredNorms:
    """The parts of ranks on several nodes. A rank sets a key per step, for which it waits for nobody.

    On each node the first rank of a norm reads it; of more than 64 ranks only the first of all. Without a store, as
    after `destroy_process_group`, no norm is known."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._late_s = _LATE_S

    def put(self, step: int, value: float) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            store = store_of_group()
            if store is not None:
                store.set(self._key(step, self._launch.rank), f"{step} {value!r}")

    def whole(self, step: int, ranks: Sequence[int], p: float) -> float | None:
        if self._launch.rank != self._reader(ranks):
            return None
        try:
            store = store_of_group()
            values = None if store is None else self._read(store, step, ranks)
        except (RuntimeError, ValueError):  # the process that holds it has ended
            return None
        return None if values is None else combined(values, p)

    def _reader(self, ranks: Sequence[int]) -> int:
        if len(ranks) > _MANY:
            return min(ranks)
        here = self._launch.local_world_size
        return min(rank for rank in ranks if rank // here == self._launch.rank // here)

    def _read(self, store: Any, step: int, ranks: Sequence[int]) -> list[float] | None:
        """The daemon has answered, so every rank has set its key; the store may be behind by a moment."""
        keys = [self._key(step, rank) for rank in ranks]
        end = time.monotonic() + self._late_s
        while True:
            if store.check(keys):  # else reading would wait
                texts = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
                parts = [text.decode().split() for text in texts]
                if all(int(number) == step for number, _ in parts):
                    self._late_s = _LATE_S
                    return [float(value) for _, value in parts]
            if time.monotonic() > end:
                self._late_s = 0.0  # A rank that was started again shows none for a while.
                return None
            time.sleep(_PAUSE_S)

    def _key(self, step: int, rank: int) -> str:
        return f"gradsync/norm/{self._launch.job}/{rank}/{step % _SLOTS}"


class PartNorms:
    """This rank's parts, and those of the ranks of one job."""

    def __init__(self, folder: Path, job: str, rank: int) -> None:
        self._folder, self._job, self._rank = folder, "".join(c if c.isalnum() else "-" for c in job), rank
        self._own: mmap.mmap | None = None
        self._others: dict[int, mmap.mmap] = {}

    def put(self, step: int, value: float) -> None:
        """Called before the daemon is asked about that step."""
        if self._own is None:
            path = self._path(self._rank)
            path.write_bytes(bytes(_SLOT.size * _SLOTS))
            self._own = self._others[self._rank] = self._map(path, mmap.ACCESS_WRITE)
        _SLOT.pack_into(self._own, step % _SLOTS * _SLOT.size, step + 1, value)

    def whole(self, step: int, ranks: Sequence[int], p: float) -> float | None:
        """The norm of all parts of these ranks; None where one has none, because it was started again."""
        values = [self._get(step, rank) for rank in ranks]
        known = [value for value in values if value is not None]
        return combined(known, p) if len(known) == len(values) else None

    def _get(self, step: int, rank: int) -> float | None:
        if rank not in self._others:
            path = self._path(rank)
            if not path.exists():
                return None
            self._others[rank] = self._map(path, mmap.ACCESS_READ)
        number, value = _SLOT.unpack_from(self._others[rank], step % _SLOTS * _SLOT.size)
        return float(value) if number == step + 1 else None

    def _path(self, rank: int) -> Path:
        return self._folder / f"norms-{self._job}-{rank}"

    @staticmethod
    def _map(path: Path, access: int) -> mmap.mmap:
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), _SLOT.size * _SLOTS, access=access)
