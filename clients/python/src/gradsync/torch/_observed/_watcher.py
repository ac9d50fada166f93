"""Observes the clip calls of an unchanged script: each call is a step of mode `observe`, of the tensors it is given.

The model is declared at the first call, with everything that optimizers hold by then. A call measures what it is given
and leaves the rest of the declaration without a gradient; so the calls of several optimizers, or of a group after the
other, are compared one by one. Nothing is raised, no collective is added, and a script that calls `gradsync.torch.init`
is observed by that line alone.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

import gradsync
from gradsync._injected import _hooks
from gradsync._launch._resolve import Launch, rank_and_world, resolve_launch
from gradsync._placements import Only
from gradsync.errors import GradsyncError

from .._audit import _megatron
from .._audit._framework_steps import FrameworkSteps
from .._audit._model import Declaration, Hints, discover, held_by, living_optimizers
from .._audit._numbers import norm_of
from .._audit._scaled import ScaledClips
from .._clip_call import ClipCall, gradients_among, owners, read_call
from .._clipping import watching
from .._joining import JoinOptions, attach_to
from .._optimizer_steps import listeners
from .._reduced._held_gradients import HeldGradients
from .._reduced._observer import Observer
from .._statistics._fingerprints import FINGERPRINT
from ._journal import Journal
from ._norms import Norms, norms_of

__all__ = ["Watcher", "from_environment", "of_command"]

_MEET_S = 10.0  # for the other ranks, at the first call alone
_CLIP = watching(gradsync.Clip.observe(gradsync.ZScore()))
_BESIDE = (
    "a clip call of torch beside the steps of DeepSpeed's optimizer is not observed, because the gradients are not in "
    "p.grad; set gradient_clipping in DeepSpeed's configuration instead"
)
_NARROW = ("bfloat16", "float16")
_Some = TypeVar("_Some")
_watcher: Watcher | None = None


def from_environment() -> _hooks.Recorder | None:
    """The recorder of a process that `gradsync observe` started; None where the script's own line observes."""
    watcher = of_command()
    return None if watcher is None or watcher.stands_aside else watcher.around


def of_command() -> Watcher | None:
    """The watcher of this process; None if `gradsync observe` did not start it."""
    global _watcher
    asked = _hooks.options("observe")
    if asked is None:
        return None
    if _watcher is None or not _watcher.is_of_this_process:
        _watcher = Watcher(asked)
        _hooks.start(_watcher.around)
    return _watcher


@dataclass(frozen=True, slots=True)
class _Look:
    """One call that is being observed. `compared` says whether its norm is one of these tensors."""

    measured: bool
    number: int
    compared: bool


class Watcher:
    """Calls belong to the thread that clips."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._hints = Hints.of(asked)
        self._within = max(_MEET_S, asked.get("patience_s") or 0.0)
        self._folder = Path(asked["folder"])
        self._pid = os.getpid()
        self._ended = False
        self.stands_aside = False
        rank, world_size = rank_and_world()
        self.journal = Journal(self._folder, rank, world_size, asked.get("jsonl"))
        self._observer: Observer | None = None
        self._norms: Norms | None = None
        self._p = 2.0  # the order of the norms that are compared
        self._parameters: list[torch.nn.Parameter] = []
        self._tensors: Sequence[gradsync.Tensor] = ()
        self._index: dict[int, int] = {}
        self._framework: FrameworkSteps | None = None  # optimizers that clip in their own step
        self._scaled = ScaledClips()
        # These four belong to the open step of the script, which ends when an optimizer steps.
        self._totals: list[tuple[float | None, set[int]]] = []  # norms that were taken alone, and of which tensors
        self._applied: tuple[float | None, set[int]] = (None, set())  # the norm of the last product, and its tensors
        self._clips: list[tuple[int, set[int], float]] = []  # number, tensors and `max_norm` of the calls
        self._only_totals = False  # the script takes norms, and multiplies by functions of its own, if at all
        atexit.register(self.close)

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child, which has a watcher of its own."""
        return os.getpid() == self._pid

    def around(self, kind: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the original with what it was given, measures before it and asks the daemon after it."""
        if kind == "step":
            return self._around_step(original, args, kwargs)
        call, args, kwargs = read_call(kind, args, kwargs)
        kind = call.kind
        if call.filtered and not self._ended:
            held = self._parameters or held_by(*living_optimizers())
            call = replace(call, given=_megatron.with_filtered(call.given, held))
        look = self._guarded(lambda: self._before(call))
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if look is not None:
                self._guarded(lambda: self._ask(look, None))
            raise
        if look is not None:
            self._guarded(lambda: self._ask(look, call.norm if kind == "apply" else result))
        if kind == "total":
            self._guarded(lambda: self._took(call, result))
        return result

    def _around_step(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for the step of a framework's optimizer, which computes the norm, clips and steps."""
        look = self._guarded(lambda: self._before_framework(args[0]))
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if look is not None:
                self._guarded(lambda: self._ask(look, None))
            raise
        if look is not None:
            self._guarded(lambda: self._ask_framework(look, args[0]))
        return result

    def reports(self) -> dict[str, Any]:
        """Where an observer of this process reports to."""
        journal = self.journal
        return {"say": journal.say, "note": self._note, "told": journal.told, "patience": self._asked.get("patience_s")}

    def adopt(self, observer: Observer, tensors: int) -> None:
        """From now on the script's own line observes, and only its results come here."""
        self._stop_watching()
        self._observer = observer
        self.journal.declared(tensors)
        if self._hints.overridden(True):
            self.journal.note(self._hints.overridden(True)[0])

    def stand_aside(self, reason: str) -> None:
        """From now on nothing is observed, because the script's own line measures."""
        self._stop_watching()
        self.journal.note(reason)

    def before_step(self, optimizer: Optimizer) -> None:
        """A step of the script is over."""

        def look() -> None:
            if any(id(parameter) in self._index for group in optimizer.param_groups for parameter in group["params"]):
                if self._totals and not self._clips:
                    self._only_totals = True
                self._look_for_scale()
                self._totals, self._applied, self._clips = [], (None, set()), []
            self._scaled.steps(optimizer)

        self._guarded(look)

    def before_unscale(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        if scaler is not None:
            self._guarded(lambda: self._scaled.divides(optimizer, float(scaler.get_scale()), scaler))

    def before_clip(self, gradients: Sequence[torch.Tensor]) -> None:
        """Does nothing: torch's calls come by `around`."""

    def close(self) -> None:
        """Ends the observation, also at the end of the script."""
        if self._observer is not None and self.is_of_this_process:
            observer, self._observer = self._observer, None
            observer.close()
            self.journal.skipped(observer.skipped)

    # inside

    def _guarded(self, look: Callable[[], _Some]) -> _Some | None:
        if self._ended or not self.is_of_this_process:
            return None
        try:
            with torch.no_grad():
                return look()
        except Exception as error:
            self._stop_watching()
            with contextlib.suppress(OSError):  # the folder of a command that was killed
                self.journal.note(f"rank {self.journal.tally.rank}: nothing is observed from now on: {error}")
            return None

    def _stop_watching(self) -> None:
        self._ended = self.stands_aside = True
        _hooks.end()
        listeners.remove(self)
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()
        self._parameters, self._index = [], {}  # so that the model is not kept alive

    def _before(self, call: ClipCall) -> _Look | None:
        if self._observer is None and not self._declare(call):
            return None
        if self._framework is not None:
            self._note_once(_BESIDE)
            return None
        if call.kind == "total":
            return self._before_total(call)
        chosen = {self._index[id(one)] for one in call.given if id(one) in self._index and _may_count(one)}
        compared = self._are_known(call) and call.p in (None, self._p)
        if call.p not in (None, self._p):
            self._note_once(f"norms of order {call.p:g} are not compared: the first call took those of {self._p:g}")
        if call.kind == "apply":
            norm = norm_of(call.norm, self.journal.tally.rank).value
            before, held = self._applied
            if before is not None and before == norm and chosen <= held:
                return None  # one norm for several groups: the first product has taken all of them
            compared = compared and (bool(self._totals) or chosen == self._with_gradients())
            # The norms may have been summed since, over stages or groups; then it is that of all of them.
            taken = [held for value, held in self._totals if value == norm] or [held for _, held in self._totals]
            chosen = chosen.union(*taken)
            self._applied = norm, chosen
        look = self._measure(chosen, compared)
        self._clips.append((look.number, chosen, float(call.limit if call.limit is not None else math.inf)))
        self._scaled.clips(self._parameters[index] for index in chosen)
        self._scaled.seen(self._parameters[index] for index in chosen)
        return look

    def _before_total(self, call: ClipCall) -> _Look | None:
        chosen = gradients_among(self._parameters, call.given)
        if not self._only_totals or not chosen:
            return None  # the product by it is observed
        # Stages of a pipeline have norms of their own, which the script sums; a framework has summed its norm.
        alone = not call.filtered and any(
            isinstance(one, Only) for index in chosen for one in self._tensors[index].placements.values()
        )
        return self._measure(chosen, not alone and call.p == self._p)

    def _before_framework(self, optimizer: Any) -> _Look | None:
        if self._observer is None:
            launch = self._launch()
            self._framework = FrameworkSteps.of_this_process(launch.world_size)
            if self._framework is not None:
                self._start(self._framework.declaration(launch.rank, self._hints), launch)
        steps = self._framework
        chosen = set() if steps is None else {self._index[id(one)] for one in steps.of(optimizer)}
        if steps is None or not chosen:
            self._note_once(
                f"the steps of a {type(optimizer).__name__} that was made after the first step are not observed; make "
                "all optimizers before it"
            )
            return None
        steps.framework.before(optimizer)
        return self._measure(chosen, True)

    def _ask_framework(self, look: _Look, optimizer: Any) -> None:
        assert self._framework is not None
        self._ask(look, self._framework.framework.norm(optimizer))

    def _took(self, call: ClipCall, norm: Any) -> None:
        """A norm of gradients, for a product that comes later, or for a log."""
        chosen = gradients_among(self._parameters, call.given)
        if chosen and call.p == self._p:
            self._totals.append((norm_of(norm, self.journal.tally.rank).value, chosen))

    def _measure(self, chosen: set[int], compared: bool) -> _Look:
        assert self._observer is not None
        measured = self._observer.measure(chosen)
        if not measured:
            self.journal.skipped(self._observer.skipped)
        return _Look(measured, self._observer.number, compared)

    def _ask(self, look: _Look, norm: Any) -> None:
        observer, norms = self._observer, self._norms
        if not look.measured or observer is None or norms is None:
            return
        found = None if norm is None or not look.compared else norm_of(norm, self.journal.tally.rank)
        if found is None or found.value is None:
            observer.ask(lambda: None, False)
            return
        value, over, number, p = found.value, found.over, look.number, self._p
        if over:
            norms.put(number, value)
            observer.ask(lambda: norms.whole(number, over, p), found.dtype in _NARROW)
        else:
            observer.ask(lambda: value, found.dtype in _NARROW)

    def _with_gradients(self) -> set[int]:
        return {index for index, parameter in enumerate(self._parameters) if parameter.grad is not None}

    def _are_known(self, call: ClipCall) -> bool:
        """Says once that a call has tensors that were not there at the first one; its norm cannot be compared."""
        strange = sum(id(one) not in self._index and one.grad is not None for one in call.given)
        if strange:
            self._note_once(
                f"{strange} of {len(call.given)} tensors of a clip call were in no module and no optimizer when the "
                "first one came: they are not observed, and the norm of such calls is not compared; make all models "
                "and optimizers before the first step"
            )
        return not strange

    def _note(self, text: str) -> None:
        """Takes what an observer says of itself; where the declaration was refused, it adds what can be done."""
        if text.startswith("ended: ") and not self.journal.tally.observed:
            text += "; what DTensors do not say of a model is told by --mesh, --pp, --ep, --sharded and --tied"
        self.journal.note(text)

    def _note_once(self, text: str) -> None:
        if text not in self.journal.tally.notes:
            self.journal.note(text)

    def _look_for_scale(self) -> None:
        for number, chosen, limit in self._clips:
            scale = self._scaled.factor([self._parameters[index] for index in chosen])
            if scale is not None and limit < scale:
                text = (
                    f"the clip came before scaler.unscale_(): norms are those of gradients times {scale:g}; call "
                    "scaler.unscale_(optimizer) before the clip"
                )
                self.journal.finding("still_scaled", number, text)
        self._scaled.finish()

    def _declare(self, call: ClipCall) -> bool:
        given = owners(call.given) if call.kind == "total" else call.given
        if not given:
            return False  # copies, or nothing: a later call will tell
        launch = self._launch()
        self._framework = FrameworkSteps.of_this_process(launch.world_size)
        if self._framework is not None:
            self._start(self._framework.declaration(launch.rank, self._hints), launch)
            return True
        self._p = 2.0 if call.p is None else float(call.p)
        self._start(self._discovered(given, launch), launch)
        return True

    def _launch(self) -> Launch:
        return resolve_launch(None, None, None, None, timeout=self._within)

    def _start(self, found: Declaration, launch: Launch) -> None:
        """Begins to observe what was found."""
        for note in found.notes:
            self.journal.note(note)
        self._parameters, self._tensors = list(found.parameters), found.tensors
        self._index = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        self._norms = norms_of(self._folder, launch)
        self._scaled.look(living_optimizers())
        p, within = self._p, self._within

        def declare(answered: Callable[[], None]) -> tuple[gradsync.ReducedGrads, Callable[[], None]]:
            connection, owned = JoinOptions(None, None, None, None, None).connect()
            answered()
            job = attach_to(connection, launch, found.meshes)
            grads = job.declare(
                found.tensors, data_path="stats", norm_type=p, clip=_CLIP, fingerprint=FINGERPRINT, timeout=within
            )
            return grads, job.detach if owned is None else owned.close

        self._observer = Observer(
            declare,
            found.tensors,
            found.parameters,
            p,
            within,
            launch.rank,
            **self.reports(),
        )
        self.journal.declared(len(found.tensors))
        listeners.add(self)

    def _discovered(self, given: Sequence[torch.Tensor], launch: Launch) -> Declaration:
        try:
            found = discover(given, self._hints, launch.rank, launch.world_size)
            HeldGradients(found.parameters, found.tensors).gather()
        except GradsyncError:  # perhaps of what another optimizer holds
            found = discover(given, self._hints, launch.rank, launch.world_size, others=False)
        return found


def _may_count(parameter: torch.Tensor) -> bool:
    """A frozen parameter that is given is not missed where it has no gradient."""
    return parameter.requires_grad or parameter.grad is not None
