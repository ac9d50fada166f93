"""Compares the weights of replicas while training goes on, by a job of their own beside that of the gradients.

The weights are declared there as gradients on data path `stats` are, which says what must be equal on which ranks; rows
carry fingerprints alone (docs/adr/0023). All ranks have the result of a step when they compare, and their optimizers
have not stepped: what is compared are the weights that the forward pass of this step saw.

Which part is due follows from the epoch and from what the daemon says of its steps, which all ranks know alike.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import nn

import gradsync
from gradsync._wire_errors import local_error
from gradsync.errors import GradsyncError, StepTimeout, UsageError, WeightsDiverged

from ._dtensor import local_tensor
from ._statistics._fingerprints import FINGERPRINT
from ._statistics._measurer import Measurer, rows_in

__all__ = ["WeightWatch", "check_weights_every"]

_PARTS = 10  # each is compared once in `every` steps
_OPENING = 3  # comparisons at the beginning of an epoch that together are of all weights
_WITHIN_S = 20.0  # the ranks are together already
_NAMED_AT_MOST = 3
_FAILURES = 3  # in a row, after which training goes on unwatched
_GRADIENT = ".grad"  # of the names of copies
_log = logging.getLogger("gradsync")


def check_weights_every(every: int) -> None:
    """Raises UsageError unless it is a number of steps, or 0."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise UsageError(f"weights_every={every!r}: give a number of steps, or 0 to compare no weights while training")


@dataclass(frozen=True, slots=True)
class Wait:
    """How long the caller of a comparison waits for the other ranks; None: as long as the daemon does."""

    timeout: float | None


class Turns:
    """Says after each step which parts of the weights are due.

    They are due in the step after one that the daemon checked, when the optimizer has stepped by the gradients of that
    one, and `interval` steps after they were due last. The first times in an epoch are for all weights together.
    """

    def __init__(self, parts: int, interval: int) -> None:
        self._parts = parts
        self._interval = interval
        self._opening = min(_OPENING, parts)
        self._epoch: int | None = None
        self._begin(None)

    def _begin(self, epoch: int | None) -> None:
        self._epoch = epoch
        self._checked = (False, True)  # the step before the one that is done, and that one: the first of an epoch
        self._since = 0  # steps since parts were due, or since the epoch began
        self._times = 0  # that parts were due

    def after_step(self, epoch: int, next_checked: bool) -> frozenset[int]:
        """The parts that are due when a step of this epoch is done, of which the daemon checks the next or not."""
        if epoch != self._epoch:
            self._begin(epoch)
        else:
            self._since += 1
        before, this = self._checked
        self._checked = (this, next_checked)
        if not self._interval or not (before or self._since >= self._interval):
            return frozenset()
        self._since = 0
        time = self._times
        self._times += 1
        if time < self._opening:
            return frozenset(range(time, self._parts, self._opening))
        return frozenset([(time - self._opening) % self._parts])


class WeightWatch:
    """The weights of one rank, declared as `tensors`; `parameters` is read anew each time."""

    def __init__(
        self,
        job: gradsync.Job,
        tensors: Sequence[gradsync.Tensor],
        parameters: Sequence[nn.Parameter],
        every: int,
        raises: bool,
        copies: Mapping[int, gradsync.Tensor] | None = None,
    ) -> None:
        """`raises`: whether `after_step` raises what it finds of weights.

        `copies` declares, by the index of the parameter, gradients that are equal along an axis before they are summed
        along others: of the copies the sidecar takes one.
        """
        self._of = job
        self._weights = len(tensors)
        self._copies = list(copies or ())
        declared = [*tensors, *(replace(one, name=one.name + _GRADIENT) for one in (copies or {}).values())]
        self._tensors = [replace(tensor, weight_fingerprint=None, layer=None, clip_group="all") for tensor in declared]
        self._parameters = parameters
        self._parts = max(1, min(every, _PARTS))
        self._turns = Turns(self._parts, every // self._parts)
        self._part_of = [self._part(tensor.name) for tensor in tensors]
        self._raises = raises
        self._equal_at: list[int | None] = [None] * self._parts  # the last step at which the part was equal
        self._failures = 0
        held = [parameters[index] for index in (*range(self._weights), *self._copies)]
        self._measurer = Measurer([(local_tensor(p).numel(), p.dtype, local_tensor(p).device) for p in held], 2.0)
        self._noted: torch.Tensor | None = None  # fingerprints of this step's copies
        self._client: gradsync.Client | None = None
        self._grads: gradsync.ReducedGrads | None = None

    def before_step(self, copy_of: Callable[[int], torch.Tensor | None]) -> None:
        """Notes the copies of gradients before the sidecar writes over them, in steps that are checked."""
        self._noted = None
        declared = self._of.grads
        if self._copies and declared is not None and declared.check:
            self._noted = self._prints([*[None] * self._weights, *map(copy_of, self._copies)])

    def after_step(self) -> tuple[gradsync.Divergence, ...]:
        """Compares a part of the weights if it is due; every rank calls this when it has the result of a step.

        What keeps it from comparing is logged: it stops no training.

        Raises:
            WeightsDiverged: they differ, and this was asked for.
        """
        of = self._of
        due = self._turns.after_step(of.epoch, of.grads is not None and of.grads.check)
        if not (due or self._noted is not None) or of.world_size == 1 or self._failures == _FAILURES:
            return ()
        try:
            found = self._compare(lambda index: self._part_of[index] in due, None)
        except Exception as error:
            self.close()
            self._failures += 1
            what_next = "which is given up" if self._failures == _FAILURES else "the next one may work"
            _log.warning("no comparison of the weights at step %d (%s): %s", of.next_step - 1, what_next, error)
            return ()
        self._failures = 0
        of_weights = [one for one in found if one.what == "weights"]
        differ = {self._part(one.tensor) for one in of_weights}
        for part in due - differ:
            self._equal_at[part] = of.next_step - 1
        if of_weights:
            diverged = self._error(of_weights, [self._equal_at[part] for part in differ])
            if self._raises:
                raise diverged
            _log.warning("%s", diverged)
        return found

    def verify(self, timeout: float | None) -> None:
        """Compares all weights now; every rank calls this between the same two steps.

        Raises:
            WeightsDiverged: they differ.
            GradsyncError: they could not be compared.
        """
        self._noted = None
        try:
            found = self._compare(lambda index: True, Wait(timeout))
        except BaseException:
            self.close()
            raise
        if found:
            raise self._error(found, self._equal_at)
        self._equal_at = [self._of.next_step - 1] * self._parts

    def close(self) -> None:
        """Leaves the job; the next comparison joins it again."""
        client, self._client, self._grads = self._client, None, None
        if client is not None:
            with contextlib.suppress(GradsyncError):
                client.close()

    def _compare(self, due: Callable[[int], bool], wait: Wait | None) -> tuple[gradsync.Divergence, ...]:
        """With `wait` for as long as that says, whatever becomes of daemons; without it training waits, so not long."""
        grads = self._joined(_WITHIN_S if wait is None else wait.timeout)
        weights = [local_tensor(p).detach() if due(index) else None for index, p in enumerate(self._parameters)]
        prints = self._prints([*weights, *[None] * len(self._copies)])
        if self._noted is not None:
            prints += self._noted
        table = rows_in(grads.table_memoryview())
        table.zero_()
        table.view(torch.float64)[:, 3] = 1.0  # sums are 0, and say nothing
        table[:, 7] = prints
        table[:, 0] = (prints != 0).long() * grads.stamp
        grads.wrote_all()
        report = _asked_once(grads) if wait is None else grads.finish(timeout=wait.timeout)
        return tuple(map(_named, report.divergence))

    def _prints(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
        return self._measurer.fingerprints(self._measurer.arrange(tensors, True))

    def _joined(self, timeout: float | None) -> gradsync.ReducedGrads:
        if self._grads is None:
            of = self._of
            self._client = gradsync.connect(of.client.address)
            job = self._client.attach(f"{of.name}.weights", of.rank, of.world_size, of.meshes)
            self._grads = job.declare(self._tensors, data_path="stats", fingerprint=FINGERPRINT, timeout=timeout)
        return self._grads

    def _part(self, name: str) -> int:
        return crc32(name.encode()) % self._parts

    def _error(self, found: Sequence[gradsync.Divergence], equal_at: Sequence[int | None]) -> gradsync.errors.RpcError:
        """`equal_at`: when the parts were equal last."""
        step = self._of.next_step - 1
        more = f" and {len(found) - _NAMED_AT_MOST} more tensors" if len(found) > _NAMED_AT_MOST else ""
        known = [one for one in equal_at if one is not None]
        since = (
            "they were not compared before" if len(known) < len(equal_at) else f"at step {min(known)} they were equal"
        )
        return local_error(
            WeightsDiverged,
            f"weights that must be equal differ at step {step}: {', '.join(map(str, found[:_NAMED_AT_MOST]))}{more}; "
            f"{since}",
            "see what those ranks did differently since then, and go on from a checkpoint with equal weights",
            step=step,
            job=self._of.name,
            tensor=found[0].tensor,
            tensors=[one.tensor for one in found],
            ranks=list(found[0].suspects or found[0].ranks),
        )


def _asked_once(grads: gradsync.ReducedGrads) -> gradsync.StepReport:
    """A step that no rank makes again at a restarted daemon: another may have given it up, and would be waited for."""
    answer = grads.collect(grads.begin(grads.next_step), _WITHIN_S)
    if answer is None:
        raise local_error(
            StepTimeout, f"not all ranks compared their weights in {_WITHIN_S:g} s", "see what the other ranks do"
        )
    return answer.report()


def _named(found: gradsync.Divergence) -> gradsync.Divergence:
    name = found.tensor.removesuffix(_GRADIENT)
    return replace(found, what="weights") if name == found.tensor else replace(found, tensor=name)
