"""Counts what torch executes and the memory that it takes meanwhile; on a GPU each operation is a launch."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Meter"]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Meter(TorchDispatchMode):
    """Views are no launches, and memory that was there before is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self.peak_bytes = 0
        self._bytes = 0
        self._users: Counter[int] = Counter()  # tensors by storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        self.launches += not func.is_view
        for one in _tensors(result):
            storage = one.untyped_storage()
            if storage._cdata in given and storage._cdata not in self._users:
                continue
            self._bytes += 0 if self._users[storage._cdata] else storage.nbytes()
            self._users[storage._cdata] += 1
            weakref.finalize(one, self._gone, storage._cdata, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return result

    def _gone(self, storage: int, size: int) -> None:
        self._users[storage] -= 1
        if not self._users[storage]:
            del self._users[storage]
            self._bytes -= size
