"""Tells listeners before any optimizer of the process steps, before a GradScaler divides its gradients, and before
torch takes a norm of gradients or clips them.

There is one hook, which is never removed: torch iterates over its table of hooks while they run, and the script's step
raises when a hook was added or removed meanwhile. Torch has no hook for `unscale_`, so the method is replaced once in
each class of scalers that is known by then. It has none for its clip functions either, and scripts import those by
name before they attach; but all of them, in every version, group the gradients by one function that they look up in
their module when they run, and that one is replaced once.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.utils.clip_grad
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["listeners"]


class Listener(Protocol):
    def before_step(self, optimizer: Optimizer) -> None: ...

    def before_unscale(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None: ...

    def before_clip(self, gradients: Sequence[torch.Tensor]) -> None: ...


class _Listeners:
    """Weak references to listeners. The tuple is never changed in place, so that a step can iterate over it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: tuple[weakref.ref[Listener], ...] = ()
        self._hooked = False
        self._told: weakref.WeakSet[type] = weakref.WeakSet()  # classes of scalers whose `unscale_` tells listeners

    def add(self, listener: Listener) -> None:
        with self._lock:
            if not self._hooked:
                register_optimizer_step_pre_hook(self._before_step)
                self._hook_clips(torch.nn.utils.clip_grad)
                self._hooked = True
            self._hook_unscale(GradScaler)
            self._alive = (*(one for one in self._alive if one() is not None), weakref.ref(listener))

    def remove(self, listener: Listener) -> None:
        """Doing it again changes nothing."""
        with self._lock:
            self._alive = tuple(one for one in self._alive if one() not in (None, listener))

    def __len__(self) -> int:
        return sum(one() is not None for one in self._alive)

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # A compiled step cannot run this.
            return
        for listener in self._listening():
            listener.before_step(optimizer)

    def _hook_unscale(self, kind: Any) -> None:
        for derived in kind.__subclasses__():  # FSDP's calls no other's
            self._hook_unscale(derived)
        unscale = vars(kind).get("unscale_")
        if unscale is None or kind in self._told:
            return
        self._told.add(kind)

        @functools.wraps(unscale)
        def unscale_(scaler: GradScaler, optimizer: Optimizer) -> None:
            if scaler.is_enabled():
                for listener in self._listening():
                    listener.before_unscale(optimizer, scaler)
            unscale(scaler, optimizer)

        kind.unscale_ = unscale_

    def _hook_clips(self, module: Any) -> None:
        group = getattr(module, "_group_tensors_by_device_and_dtype", None)
        if group is None:  # In a torch that does without it, a clip is noticed as a change of the gradients.
            return

        @functools.wraps(group)
        def group_tensors(tensors: Sequence[Sequence[torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                for listener in self._listening():
                    listener.before_clip(tensors[0])
            return group(tensors, *args, **kwargs)

        module._group_tensors_by_device_and_dtype = group_tensors

    def _listening(self) -> Iterator[Listener]:
        for one in self._alive:
            listener = one()
            if listener is not None:
                yield listener


listeners = _Listeners()
