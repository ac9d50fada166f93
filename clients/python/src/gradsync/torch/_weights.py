"""Compares the weights of replicas while training goes on, by a job of their own beside that of the gradients.

The weights are declared there as gradients on data path `stats` are, which says what must be equal on which ranks; rows
carry fingerprints alone (docs/adr/0023). All ranks have the result of a step when they compare, and their optimizers
have not stepped: what is compared are the weights that the forward pass of this step saw.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import torch
from torch import nn

import gradsync
from gradsync._wire_errors import local_error
from gradsync.errors import GradsyncError, UsageError, WeightsDiverged

from ._dtensor import local_tensor
from ._statistics._fingerprints import FINGERPRINT
from ._statistics._measurer import Measurer, rows_in

__all__ = ["WeightWatch", "check_weights_every"]

_PARTS = 10  # each is compared once in `every` steps
_WITHIN_S = 60.0
_NAMED_AT_MOST = 3
_FAILURES = 3  # in a row, after which training goes on unwatched
_GRADIENT = ".grad"  # of the names of copies
_FIRST_CHECKED, _CHECK_EVERY = 3, 100  # as the daemon has them, unless it is configured otherwise
_log = logging.getLogger("gradsync")


def check_weights_every(every: int) -> None:
    """Raises UsageError unless it is a number of steps, or 0."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise UsageError(f"weights_every={every!r}: give a number of steps, or 0 to compare no weights while training")


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
        self._interval = every // self._parts  # 0: never
        self._part_of = [crc32(tensor.name.encode()) % self._parts for tensor in tensors]
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
        step = self._of.next_step
        if self._copies and (step < _FIRST_CHECKED or step % _CHECK_EVERY == 0):
            self._noted = self._prints([*[None] * self._weights, *map(copy_of, self._copies)])

    def after_step(self) -> tuple[gradsync.Divergence, ...]:
        """Compares a part of the weights if it is due; every rank calls this when it has the result of a step.

        What keeps it from comparing is logged: it stops no training.

        Raises:
            WeightsDiverged: they differ, and this was asked for.
        """
        done = self._of.next_step
        due = self._interval and not done % self._interval
        if not (due or self._noted is not None) or self._of.world_size == 1 or self._failures == _FAILURES:
            return ()
        part = done // self._interval % self._parts if due else None
        try:
            found = self._compare(lambda index: self._part_of[index] == part, _WITHIN_S)
        except Exception as error:
            self.close()
            self._failures += 1
            what_next = "which is given up" if self._failures == _FAILURES else "the next one may work"
            _log.warning("no comparison of the weights at step %d (%s): %s", done - 1, what_next, error)
            return ()
        self._failures = 0
        of_weights = [one for one in found if one.what == "weights"]
        if part is not None and of_weights:
            diverged = self._error(of_weights, self._equal_at[part])
            if self._raises:
                raise diverged
            _log.warning("%s", diverged)
        elif part is not None:
            self._equal_at[part] = done - 1
        return found

    def verify(self, timeout: float | None) -> None:
        """Compares all weights now; every rank calls this between the same two steps.

        Raises:
            WeightsDiverged: they differ.
            GradsyncError: they could not be compared.
        """
        self._noted = None
        try:
            found = self._compare(lambda index: True, timeout)
        except BaseException:
            self.close()
            raise
        if found:
            known = [step for step in self._equal_at if step is not None]
            raise self._error(found, min(known) if len(known) == self._parts else None)
        self._equal_at = [self._of.next_step - 1] * self._parts

    def close(self) -> None:
        """Leaves the job; the next comparison joins it again."""
        client, self._client, self._grads = self._client, None, None
        if client is not None:
            with contextlib.suppress(GradsyncError):
                client.close()

    def _compare(self, due: Callable[[int], bool], timeout: float | None) -> tuple[gradsync.Divergence, ...]:
        grads = self._joined(timeout)
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
        return tuple(map(_named, grads.finish(timeout=timeout).divergence))

    def _prints(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
        return self._measurer.fingerprints(self._measurer.arrange(tensors, True))

    def _joined(self, timeout: float | None) -> gradsync.ReducedGrads:
        if self._grads is None:
            of = self._of
            self._client = gradsync.connect(of.client.address)
            job = self._client.attach(f"{of.name}.weights", of.rank, of.world_size, of.meshes)
            self._grads = job.declare(self._tensors, data_path="stats", fingerprint=FINGERPRINT, timeout=timeout)
        return self._grads

    def _error(self, found: Sequence[gradsync.Divergence], equal_at: int | None) -> gradsync.errors.RpcError:
        step = self._of.next_step - 1
        more = f" and {len(found) - _NAMED_AT_MOST} more tensors" if len(found) > _NAMED_AT_MOST else ""
        since = "they were not compared before" if equal_at is None else f"at step {equal_at} they were equal"
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


def _named(found: gradsync.Divergence) -> gradsync.Divergence:
    name = found.tensor.removesuffix(_GRADIENT)
    return replace(found, what="weights") if name == found.tensor else replace(found, tensor=name)
