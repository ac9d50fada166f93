"""One rank of `gradsync audit`: measures the gradients that the script's clip is given, and writes what was found.

It sends nothing, waits for nothing, raises nothing and adds no collective, and changes no gradient, weight or random
number. After some steps it restores torch's functions.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradsync._audit._findings import Call, RankWriter, Step, Stepped
from gradsync._injected import _hooks
from gradsync._launch._nodes import node_name
from gradsync._launch._resolve import rank_and_world
from gradsync._step._row import Row
from gradsync.errors import GradsyncError

from .._clip_call import gradients_among, owners, read_call
from .._dtensor import local_tensor
from .._optimizer_steps import listeners
from .._reduced._held_gradients import HeldGradients
from . import _megatron, _model
from ._framework_steps import FrameworkSteps
from ._model import Declaration, Hints, discover
from ._numbers import Norm, norm_of, own_norms, rows_of
from ._scaled import ScaledClips
from ._stand_ins import NotSeen

__all__ = ["Recorder", "declared", "from_environment", "observed"]

_log = logging.getLogger("gradsync")
_declaration: Declaration | None = None  # set by gradsync.torch.init or audit, where the script calls them
_recorder: Recorder | None = None


def from_environment() -> _hooks.Recorder | None:
    """The recorder of a process that `gradsync audit` started."""
    asked = _hooks.options("audit")
    if asked is None:
        return None
    return begin(Path(asked["folder"]), int(asked["steps"]), Hints.of(asked)).around


def begin(folder: Path, steps: int, hints: Hints) -> Recorder:
    global _recorder
    _recorder = Recorder(folder, steps, hints)
    _hooks.start(_recorder.around)
    return _recorder


def declared(declaration: Declaration) -> None:
    """Keeps what the script itself says about its model, which replaces what would be found."""
    global _declaration
    if _recorder is not None or _hooks.options("audit") is not None:
        _declaration = declaration


def observed(norm: torch.Tensor | float | None) -> None:
    """Takes the norm of a script that clips by functions of its own."""
    if _recorder is None and _hooks.options("audit") is not None and not _hooks.ended():
        from_environment()
    if _recorder is not None:
        _recorder.observe(norm)


class Recorder:
    """Calls belong to the thread that clips."""

    def __init__(self, folder: Path, steps: int, hints: Hints) -> None:
        self._folder, self._hints = folder, hints
        self._wanted = steps
        self._pid = os.getpid()
        self._writer: RankWriter | None = None
        self._held: HeldGradients | None = None
        self._p = 2.0
        self._order = 2.0  # the order of the norm in the current call
        self._open: Step | None = None
        self._calls: list[Call] = []
        # norms of gradients that were multiplied already: they belong to the next step, if to any
        self._late: list[Call] = []
        self._multiplied: set[int] = set()
        self._parameters: list[nn.Parameter] = []
        self._index: dict[int, int] = {}
        self._states: list[object] = []  # states of the gradients that were measured
        self._scaled = ScaledClips()
        self._calling = False  # a function that `around` was given
        self._by_value: set[int] = set()  # indices of tensors that `clip_grad_value_` was given
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._stepped: dict[int, Stepped] = {}  # since the last line that was written
        self._framework: FrameworkSteps | None = None  # optimizers that clip in their own step
        self._strange: set[int] = set()  # ids of clipped tensors that are not of the model
        self._done = 0
        self._ended = False
        # called with the first step, because the order may change until then
        self._write_head: Callable[[], None] = lambda: None
        atexit.register(self.close)

    def around(self, kind: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the original with what it was given, and measures before and after it."""
        if kind == "step":
            return self._around_step(original, args, kwargs)
        call, args, kwargs = read_call(kind, args, kwargs)
        kind, given, norm, limit = call.kind, call.given, call.norm, call.limit
        if call.filtered and not self._ended:
            given = _megatron.with_filtered(given, self._parameters or _model.held_by(*_model.living_optimizers()))
        self._guarded(lambda: self._before(kind, given, call.p, norm))
        self._calling = True
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self._guarded(lambda: self._after(kind, given, None, limit))
            raise
        finally:
            self._calling = False
        self._guarded(lambda: self._after(kind, given, norm if kind == "apply" else result, limit))
        return result

    def observe(self, norm: torch.Tensor | float | None) -> None:
        """Measures all gradients as they are now, beside this norm of them."""

        def look() -> None:
            given = [] if _declaration is None else list(_declaration.parameters)
            self._before("clip", given, None, None)
            self._after("clip", given, norm)

        self._guarded(look)

    def before_step(self, optimizer: Optimizer) -> None:
        def look() -> None:
            factor = getattr(optimizer, "grad_scale", None)
            if isinstance(factor, torch.Tensor) and factor.numel() == 1:  # a fused optimizer divides while it steps
                self._divides(optimizer, float(factor))
            self._scaled.steps(optimizer)
            self._keep_stepped(optimizer)
            if not self._calling:  # else a framework's step goes on, and its norm is read when it ends
                self._finish_step()

        self._guarded(look)

    def before_unscale(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        if scaler is not None:
            self._guarded(lambda: self._divides(optimizer, float(scaler.get_scale()), scaler))

    def before_clip(self, gradients: Sequence[torch.Tensor]) -> None:
        """Notes a call of `clip_grad_value_`; torch's other calls that come here are seen by `around`."""
        if not self._calling:
            self._guarded(lambda: self._by_value.update(self._gradients_of(gradients)))

    def close(self) -> None:
        """Ends the audit of this rank, also at the end of the script."""
        if not self._ended and os.getpid() == self._pid:
            self._guarded(self._finish_step)
            self._guarded(self._end)

    # inside

    def _guarded(self, look: Callable[[], None]) -> None:
        if self._ended or os.getpid() != self._pid:
            return
        try:
            with torch.no_grad():
                look()
        except Exception as error:
            _log.warning("gradsync audit: this rank is not audited any further: %s", error)
            try:
                rank, world_size = rank_and_world()
                self._open_file(rank).failed(f"{type(error).__name__}: {error}", world_size)
            except OSError as unwritten:
                _log.warning("gradsync audit: %s", unwritten)
            self._end()

    def _divides(self, optimizer: Optimizer, factor: float, scaler: GradScaler | None = None) -> None:
        if self._scaled.divides(optimizer, factor, scaler):
            self._finish_step()  # The scaler skipped the step before, and these gradients are newer.

    def _around_step(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for the step of a framework's optimizer, which computes the norm, clips and steps."""
        self._guarded(lambda: self._before_framework(args[0]))
        self._calling = True
        try:
            result = original(*args, **kwargs)
        finally:
            self._calling = False
        self._guarded(lambda: self._after_framework(args[0]))
        return result

    def _before_framework(self, optimizer: Any) -> None:
        if self._held is None:
            self._declare([])
        if self._framework is not None:
            self._framework.framework.before(optimizer)
        self._measure()

    def _after_framework(self, optimizer: Any) -> None:
        if self._framework is not None:
            call = self._framework.call_of(optimizer, rank_and_world()[0])
            self._calls.append(call)
            self._multiplied |= set(map(id, self._framework.of(optimizer)))
        self._finish_step()

    def _keep_stepped(self, optimizer: Optimizer) -> None:
        held = [id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        stands_for = {} if self._framework is None else self._framework.stands_for
        indices = {self._index[one] for one in held if one in self._index}
        indices |= {index for one in held for index in stands_for.get(one, ())}
        known = {*self._index, *self._strange, *stands_for}
        strangers = sum(one not in known for one in held)
        before = self._stepped.get(number)
        if before is not None:
            indices, strangers = indices | {*before.tensors}, max(strangers, before.strangers)
        by_value = tuple(sorted(indices & self._by_value))
        self._stepped[number] = Stepped(number, type(optimizer).__name__, tuple(sorted(indices)), strangers, by_value)

    def _before(self, kind: str, given: Sequence[torch.Tensor], p: float | None, norm: Any) -> None:
        if self._is_of_next_step(kind, given):
            late = self._late
            self._finish_step()
            self._calls = late
        elif self._changed(kind, given):
            # Gradients are newer than the last measurement: one model's backward came after another's clip.
            self._finish_step()
        if self._ended:
            return
        first = self._held is None
        if first:
            self._p = self._p if p is None else float(p)
            if kind == "total":
                parameters = owners(given)
                if not parameters and _declaration is None:
                    return  # Copies, or parts of DTensors: the product by this norm will tell their parameters.
                given = parameters
            self._declare(given)
        order = self._order_of(norm) if kind == "apply" else p
        if kind != "total" and not self._done and not self._multiplied and order is not None:
            self._p = float(order)  # Norms that came before may have any order; they were perhaps for a log.
        self._order = self._p if order is None else float(order)
        if kind == "total" and not first and (self._multiplied or not self._gradients_of(given)):
            return
        if self._open is None or not self._multiplied:
            self._measure()  # Measure again after a norm: more may have been added to the gradients since.

    def _measure(self) -> None:
        assert self._held is not None
        gradients = self._held.gather()
        rows = rows_of(self._held.measurer(self._p), gradients)
        if self._open is not None and [_bits(row) for row in rows] != [_bits(row) for row in self._open.rows]:
            self._calls = []  # The gradients changed, so these calls no longer count.
        self._open = Step(rows, own_norms(gradients, self._p), ())
        self._states = [_state(parameter.grad) for parameter in self._parameters]

    def _changed(self, kind: str, given: Sequence[torch.Tensor]) -> bool:
        """Whether these gradients changed since they were measured before an earlier product."""
        if self._open is None or not self._multiplied or kind == "apply":
            return False
        chosen = {self._index[id(one)] for one in given if id(one) in self._index}
        chosen = self._gradients_of(given) if kind == "total" else chosen
        if any(id(self._parameters[index]) in self._multiplied for index in chosen):
            return False
        return any(_state(self._parameters[index].grad) != self._states[index] for index in chosen)

    def _order_of(self, norm: Any) -> float | None:
        """The order of the norm that gradients are multiplied by, if a norm of this step is found for it."""
        totals = [call for call in self._calls if call.kind == "total"]
        value = norm_of(norm, rank_and_world()[0]).value
        orders = {call.p for call in totals if call.norm == value}
        if not orders and not self._done:  # The script may have summed the norm over ranks since.
            orders = {call.p for call in totals}
        return None if not orders or self._p in orders else 2.0 if 2.0 in orders else max(orders)

    def _after(self, kind: str, given: Sequence[torch.Tensor], norm: Any, limit: Any = None) -> None:
        if self._open is None or self._ended:
            return
        seen = Norm(None, "float32") if norm is None else norm_of(norm, rank_and_world()[0])
        if kind == "total":
            chosen = self._gradients_of(given)
            strange = max(0, sum(tensor.numel() > 0 for tensor in given) - len(chosen))
            if not chosen and any(tensor.numel() for tensor in given):
                return  # The norm is not one of gradients.
        else:
            chosen = {self._index[id(tensor)] for tensor in given if id(tensor) in self._index}
            strange = sum(id(tensor) not in self._index and tensor.grad is not None for tensor in given)
        whole = not strange and len(chosen) == len(self._parameters)
        tensors = None if whole else tuple(sorted(chosen))
        late = kind == "total" and any(id(self._parameters[i]) in self._multiplied for i in chosen)
        calls = self._late if late else self._calls
        most = None if limit is None else float(limit)
        calls.append(Call(kind, self._order, seen.value, seen.dtype, tensors, seen.over, strange, most))
        if kind != "total":
            self._multiplied |= set(map(id, given))
            self._strange |= {id(tensor) for tensor in given if id(tensor) not in self._index}
            self._scaled.clips(self._parameters[index] for index in chosen)
        self._scaled.seen(self._parameters[index] for index in chosen)

    def _is_of_next_step(self, kind: str, given: Sequence[torch.Tensor]) -> bool:
        """Whether gradients come again that were multiplied: a step is over without an optimizer of torch."""
        if kind == "total":
            return False  # The norm is perhaps logged after the product; the next product will tell.
        ids = set(map(id, given))
        return bool(ids & self._multiplied) or (not ids and any(call.kind == kind for call in self._calls))

    def _gradients_of(self, given: Sequence[torch.Tensor]) -> set[int]:
        """The gradients that these tensors are, or are this rank's parts of."""
        return gradients_among(self._parameters, given)

    def _declare(self, given: Sequence[torch.Tensor]) -> None:
        rank, world_size = rank_and_world()
        try:
            self._framework = FrameworkSteps.of_this_process(world_size)
            found = None if self._framework is None else self._framework.declaration(rank, self._hints)
            found = found or _declaration or discover(given, self._hints, rank, world_size)
            self._held = HeldGradients(found.parameters, found.tensors)
            self._held.gather()
        except GradsyncError as error:
            if _declaration is not None or isinstance(error, NotSeen):
                raise
            found = discover(given, self._hints, rank, world_size, others=False)
            self._held = HeldGradients(found.parameters, found.tensors)
        self._parameters = list(found.parameters)
        self._index = {id(parameter): i for i, parameter in enumerate(self._parameters)}
        writer, meshes = self._open_file(rank), {mesh.name: mesh.axes for mesh in found.meshes}
        notes = [*found.notes, *self._hints.overridden(_declaration is found)]
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        node = (local, node_name(os.environ)) if local < world_size else ()
        self._write_head = lambda: writer.head(rank, world_size, meshes, found.tensors, self._p, notes, *node)
        self._scaled.look(_model.living_optimizers())
        listeners.add(self)

    def _open_file(self, rank: int) -> RankWriter:
        if self._writer is None:
            self._writer = RankWriter(self._folder, rank)
        return self._writer

    def _finish_step(self) -> None:
        if self._open is None:
            return
        calls = [replace(call, scale=self._scale_of(call)) for call in self._calls]
        step, self._open = Step(self._open.rows, self._open.own, calls, list(self._stepped.values())), None
        self._calls, self._late, self._multiplied, self._stepped = [], [], set(), {}
        self._scaled.finish()
        assert self._writer is not None
        if not self._done:
            self._write_head()
        self._writer.step(step)
        self._done += 1
        if self._done == self._wanted:
            self._end()

    def _scale_of(self, call: Call) -> float | None:
        chosen = range(len(self._parameters)) if call.tensors is None else call.tensors
        return self._scaled.factor([self._parameters[index] for index in chosen])

    def _end(self) -> None:
        self._ended = True
        _hooks.end()
        listeners.remove(self)
        atexit.unregister(self.close)
        self._held, self._parameters, self._index = None, [], {}  # so that the model is not kept alive
        if self._writer is not None:
            if not self._done:
                self._write_head()
            self._writer.done()


def _bits(row: Row | None) -> object:
    return None if row is None else row.fingerprint


def _state(gradient: torch.Tensor | None) -> object:
    """A value that changes when the gradient is exchanged or written to."""
    if gradient is None or gradient.is_inference():
        return None
    return id(gradient), local_tensor(gradient)._version
