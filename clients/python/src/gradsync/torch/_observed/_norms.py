"""Norms of which every rank has a part: ranks show theirs to each other in shared memory, without a collective.

`clip_grad_norm_` of DTensors returns a norm that is not summed over ranks yet. To sum it, every rank would have to take
part in a collective, also one that observes nothing; so each writes its part, and reads those of the others when the
daemon has answered, which it does after all have asked.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

from gradsync._audit._world import combined

__all__ = ["PartNorms"]

_SLOT = struct.Struct("<qd")
_SLOTS = 64  # steps that are kept; no rank is more than one ahead of an answer


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
