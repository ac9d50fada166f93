"""Checks each optimizer before it steps, so that no rank's own gradients reach the weights unnoticed.

It runs on the thread that steps. Optimizers of other modules are not checked.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradsync._step._declared import some_of
from gradsync.errors import GradsyncError, UsageError

from .._errors import ParameterChanged
from .._optimizer_steps import listeners
from .._parameter_set import ParameterSet

if TYPE_CHECKING:
    from ._sharded import Shards


class OptimizerGuard:
    """`unsynchronised` says whether backward brought gradients that no step has reduced yet. `done` says why the
    gradients of a completed step may not be divided by the scale of a loss; "" if they may."""

    def __init__(
        self,
        found: ParameterSet,
        unsynchronised: Callable[[], bool],
        done: Callable[[], str],
        shards: Shards | None = None,
    ) -> None:
        self._found = found
        self._shards = shards
        self._unsynchronised = unsynchronised
        self._done = done
        # For each optimizer the parameters whose mixed dtypes were tried.
        self._tried: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()
        listeners.add(self)

    def check(self, optimizer: Optimizer) -> None:
        """Raises ParameterChanged for a parameter that no rank synchronises, or that cannot be stepped."""
        self._found.check_known(optimizer.param_groups)
        if self._shards is not None:
            self._shards.check(optimizer)
        if not self._found.mixed_dtypes:
            return
        members = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if self._tried.get(optimizer) != members:
            try_mixed_dtypes(self._found, optimizer)
            self._tried[optimizer] = members

    def close(self) -> None:
        listeners.remove(self)

    def before_unscale(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        """Only this hook sees the division, because torch does not count it in the gradients' version counters.

        Raises:
            UsageError: the gradients may be in the middle of the reduction, or were divided or clipped already.
        """
        if not self._found.holds_any(optimizer.param_groups):
            return
        wrong = (
            "this rank's own gradients, which are not reduced yet, and may be read by other ranks just now"
            if self._unsynchronised()
            else self._done()
        )
        if wrong:
            raise UsageError(
                f"The scaler would divide {wrong}; leave unscale_() out and give gs.step() or gs.finish() "
                "scaler= (and finish() all of its optimizers): gradsync unscales, measures and clips in one pass"
            )

    def before_clip(self, gradients: Sequence[torch.Tensor]) -> None:
        """Torch's own clip of what is not reduced would multiply each rank's gradients by another coefficient.

        Raises:
            UsageError: one of these is a gradient of this module, and no step has reduced it yet.
        """
        if not self._unsynchronised():
            return
        clipped = set(map(id, gradients))
        names = [
            name
            for name, parameter in zip(self._found.names, self._found.parameters, strict=True)
            if id(parameter.grad) in clipped
        ]
        if names:
            raise UsageError(
                f"torch.nn.utils would measure or clip this rank's own gradients ({some_of(names)}), which are not "
                "reduced yet, so that every rank clips differently; leave that call out and give "
                "attach(clip=gradsync.Clip(max_norm=…)): the norm is in the report of gs.step(); or call it between "
                "gs.finish() and optimizer.step()"
            )

    def before_step(self, optimizer: Optimizer) -> None:
        if not self._found.holds_any(optimizer.param_groups):
            return
        try:
            self._check_step(optimizer)
        except GradsyncError:
            # A scaler set these for this step only; left in place, the next step would divide by them too.
            for told in ("grad_scale", "found_inf"):
                vars(optimizer).pop(told, None)
            raise

    def _check_step(self, optimizer: Optimizer) -> None:
        self.check(optimizer)
        for index in self._found.placed:
            parameter: Any = self._found.parameters[index]
            placements = getattr(parameter.grad, "placements", None)
            if parameter.grad is not None and placements != parameter.placements:
                raise UsageError(
                    f"{type(optimizer).__name__}.step() would use a gradient of '{self._found.names[index]}' that is "
                    f"{placements or 'a plain tensor'}, and its parameter {parameter.placements}; call finish() before"
                )
        if self._unsynchronised():
            raise UsageError(
                f"{type(optimizer).__name__}.step() would use this rank's own gradients, which are not reduced yet; "
                "call finish() before it, or step(optimizer) of gradsync instead of it; close() ends synchronisation"
            )
        if getattr(optimizer, "grad_scale", None) is not None:  # a fused optimizer unscales by itself
            self.before_unscale(optimizer)


def steppable(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """The optimizers that `gs.step` was given.

    Raises:
        UsageError: one is not an optimizer, or wants to compute the loss itself.
    """
    single = hasattr(optimizer, "param_groups") or not isinstance(optimizer, Iterable)
    given: list[Any] = [optimizer] if single else list(optimizer)  # type: ignore[arg-type]
    for one in given:
        if not (hasattr(one, "param_groups") and callable(getattr(one, "step", None))):
            raise UsageError(f"gs.step() got {type(one).__name__}; give a torch.optim.Optimizer, or a list of several")
        if _needs_closure(type(one)):  # type: ignore[arg-type]
            raise UsageError(
                f"gs.step() cannot step {type(one).__name__}, which computes the loss itself, several times; call "
                "optimizer.step(closure) with gs.finish() at the end of the closure"
            )
    return given


@functools.cache
def _needs_closure(kind: Any) -> bool:
    """Whether `step` of this class needs an argument beside `self`."""
    try:
        arguments = inspect.signature(getattr(kind, "step", None)).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # `step` is not written in Python, or not defined by the class
        return False
    wanted = [one for one in arguments if one.default is one.empty]
    return sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in wanted) > 1


def try_mixed_dtypes(found: ParameterSet, optimizer: Optimizer) -> None:
    """Gradients wider than their parameters (`grad_dtype`): tries the optimizer on one element, so that it cannot fail
    halfway through a step."""
    names = dict(zip(map(id, found.parameters), found.names, strict=True))
    tried: set[tuple[torch.dtype, torch.dtype]] = set()
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        for parameter in group["params"]:
            pair = (parameter.dtype, getattr(parameter, "grad_dtype", None) or parameter.dtype)
            if pair[0] == pair[1] or pair in tried or id(parameter) not in names:
                continue
            tried.add(pair)
            sample = torch.nn.Parameter(torch.zeros(1, dtype=pair[0]))
            sample.grad_dtype = pair[1]
            sample.grad = torch.zeros(1, dtype=pair[1])
            try:
                make: Any = type(optimizer)
                make([{"params": [sample], **options}]).step()
            except (RuntimeError, TypeError, ValueError) as error:
                raise ParameterChanged(
                    names[id(parameter)],
                    f"{type(optimizer).__name__} cannot step a {pair[0]} parameter with a {pair[1]} gradient ({error})",
                    "leave grad_dtype as it is, keep the parameters in the wider dtype, or use another optimizer",
                ) from error
