"""Brings what backward left in each parameter's gradient into the arena, and counts it.

Each parameter has a view of the arena with the gradient's strides. A step begins with `p.grad` None: autograd allocates
the first gradient, the hook copies it into the view and puts the view in its place, and later micro-batches accumulate
into the view directly. (Zeroing the arena, so that autograd adds to it from the start, is no faster: ADR 0006.) A
parameter whose hook did not fire in a step contributes nothing, so old arena bytes are never part of a sum. Gradients
that are DTensors stay as they are placed (`_placed_gradient.py`).

Hook counts are hints. A bucket is launched during backward only when its counts were equal on all ranks in the step
before, every tensor of it reached the most it ever had, and only in the last micro-batch (`_micro_batches.py`);
`settle` completes everything else. So steps may be shorter than others (the end of an epoch, a loss used now and then),
and no gradient comes late. Buckets that hold DTensors are tried before (`_trials.py`): not all writes to a DTensor
leave a trace.

On a GPU no bucket is launched early: this process would have to wait for the GPU in the middle of backward, and the
worker's passes and this process's kernels take turns anyway (docs/adr/0028).

Thread: the one that runs backward and step(). Autograd calls hooks of CPU tensors on the thread that called backward,
and those of a GPU on a thread of its own, while the former waits.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradsync import StepReport

from .._dtensor import local_tensor
from .._errors import LateGradient
from .._parameter_set import ParameterSet
from ._accepted import check_gradient
from ._micro_batches import MicroBatches
from ._placed_gradient import PlacedGradient
from ._trials import Trials

if TYPE_CHECKING:
    from gradsync import Grads

_NEVER = 1 << 40


@dataclass
class Counters:
    """Counts since attach. A hook moved `copied` gradients into the arena (one per parameter and step is normal);
    step() moved `settled` ones: after create_graph, a gradient set by hand, or a replaced parameter."""

    steps: int = 0
    hooks: int = 0
    copied: int = 0
    settled: int = 0
    rebound: int = 0  #: `p.grad` was another tensor over the arena's own memory
    replaced_parameters: int = 0
    launched_early: int = 0
    launched_at_step: int = 0
    unused: int = 0  #: tensors without a gradient on this rank, summed over steps
    absent: int = 0  #: tensors without a gradient on any rank, summed over steps
    overlap_failed: str = ""  #: which DTensor changed after its last hook: their buckets wait for step() since then


class GradientRecorder:
    def __init__(
        self,
        found: ParameterSet,
        views: Sequence[torch.Tensor],
        placed: Mapping[int, PlacedGradient],
        grads: Grads,
        accumulate: int,
        *,
        copied: Collection[int] = (),
        overlap: bool = True,
    ) -> None:
        """`copied` gradients are compared in checked steps before they are reduced. `overlap`: whether a bucket may be
        launched while backward runs."""
        self.counters = Counters()
        self._before = Counters()  #: when this attempt at a step began
        self.step = 0
        self.late: LateGradient | None = None
        self.views = [placed[i].result if i in placed else view for i, view in enumerate(views)]
        self._placed = placed
        self._found = found
        self._grads = grads
        self._buckets = [list(bucket.tensors) for bucket in grads.buckets]
        self._accumulate = accumulate
        self._early = overlap and grads.early
        count = len(found.parameters)
        self._bucket_of = [0] * count
        for b, members in enumerate(self._buckets):
            for i in members:
                self._bucket_of[i] = b
        of_dtensors = {self._bucket_of[i]: self._buckets[self._bucket_of[i]] for i in placed}
        self._trials = Trials(found, of_dtensors, views, copied, len(self._buckets), lambda: grads.check)
        self._counts = [0] * count
        self._most = [0] * count  #: hooks in a step so far
        self._expected = [0] * count  #: hooks in a step; 0: not known, and the bucket is not launched early
        self._left = [_NEVER] * len(self._buckets)  #: tensors of the bucket whose hooks are still expected
        self.launched = [False] * len(self._buckets)
        self._versions = self._versions_now()  #: when launched or noted for a trial, else when the step began
        self._micro_batches = MicroBatches(count, accumulate)
        self._handles = [self._hook(i, parameter) for i, parameter in enumerate(found.parameters)]
        self._redistribute_hooks = {i: self._hook_before(i) for i in placed if i not in found.managed}

    def _hook(self, index: int, parameter: nn.Parameter) -> RemovableHandle:
        views, bucket = self.views, self._bucket_of[index]
        counts, expected, left, launched = self._counts, self._expected, self._left, self.launched
        gather = self._accumulate > 1
        move, micro_batches = self._move, self._micro_batches
        trials, tried = self._trials, self._trials.tried

        def hook(parameter: torch.Tensor) -> None:
            if launched[bucket]:
                raise self._too_late(index)
            gradient = parameter.grad
            if gradient is not views[index]:
                move(index, parameter, gradient)
            if gather:
                micro_batches.count_hook(index)
            count = counts[index] + 1
            counts[index] = count
            if count >= expected[index]:
                if count == expected[index]:
                    if tried[bucket]:
                        trials.note(index)
                        self._versions[index] = self._version(index)
                    left[bucket] -= 1
                    if left[bucket] == 0 and micro_batches.in_last:
                        self._launch_early(bucket)
                elif expected[index]:
                    left[bucket] = _NEVER  # fired more often than before: step() completes the bucket

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return handle

    def _hook_before(self, index: int) -> tuple[RemovableHandle, torch.Tensor]:
        """A hook that runs before autograd adds a gradient, and the memory that the parameter had then."""
        parameter: Any = self._found.parameters[index]
        return parameter.register_hook(self._placed[index].redistributed), parameter._local_tensor

    def _move(self, index: int, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            return  # An earlier hook of the user took it.
        if gradient.requires_grad:
            # create_graph: the caller still differentiates through p.grad, so it stays theirs until step().
            self._left[self._bucket_of[index]] = _NEVER
            return
        check_gradient(self._found.names[index], gradient, self.views[index])
        if self._counts[index]:
            # The gradient was dropped after its hook fired, as a failed backward does: this step's counts say nothing.
            self._left[self._bucket_of[index]] = _NEVER
        view = self.views[index]
        if index in self._placed:
            self._bind(index, parameter, gradient)
            self.counters.copied += 1
            return
        if gradient.data_ptr() == view.data_ptr() and gradient.stride() == view.stride() and view.numel():
            self.counters.rebound += 1
        else:
            view.copy_(gradient)
            self.counters.copied += 1
        parameter.grad = view

    def _bind(self, index: int, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.grad = self.views[index] = self._placed[index].bind(gradient)

    def _too_late(self, index: int) -> LateGradient:
        if self.late is None:
            self.late = LateGradient(self._found.names[index], self.step, self._counts[index])
        return self.late

    def _launch_early(self, bucket: int) -> None:
        if self._trials.hold(bucket):
            return
        self.launched[bucket] = True
        for index in self._buckets[bucket]:
            self._versions[index] = self._version(index)
            if index in self._placed:
                self._guard(index)
        self.counters.launched_early += 1
        self._grads.ready_bucket(bucket, self.micro_batch)

    def _guard(self, index: int) -> None:
        from ._launched_gradient import refuse_writes  # imports torch.distributed, which plain modules do without

        bucket = self._bucket_of[index]
        refuse_writes(self.views[index], lambda: self._too_late(index) if self.launched[bucket] else None)
        if not self._placed[index].contributes:
            self._grads.mark_unused_index(index)  # the daemon sums another rank's copy

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch that the step is in; None where there is but one, and while it is not known."""
        return self._micro_batches.current

    def describe(self, report: StepReport) -> StepReport:
        """The report with the counts of this rank's step in it."""
        now, before = self.counters, self._before
        return replace(
            report,
            copied_gradients=now.copied - before.copied,
            settled_gradients=now.settled - before.settled,
            rebound_gradients=now.rebound - before.rebound,
        )

    def fired(self) -> bool:
        """Whether backward brought any gradient since the last step."""
        return any(self._counts)

    def unreduced(self) -> bool:
        """Whether backward brought any gradient since the last step, also one that no hook saw."""
        parameters = self._found.parameters
        return self.fired() or any(
            parameters[index].grad is not None and parameters[index].grad is not self.views[index]
            for index in self._without_hooks()
        )

    def _without_hooks(self) -> list[int]:
        # Module.to() swaps what a DTensor is made of: the hooks are still listed, and are not called any more.
        parameters: list[Any] = self._found.parameters
        return [
            index
            for index, (_, made_for) in self._redistribute_hooks.items()
            if parameters[index]._local_tensor is not made_for
        ]

    def follow_memory(self) -> None:
        """Registers the hooks of DTensors again that `Module.to()` has made ineffective."""
        for index in self._without_hooks():
            parameter: Any = self._found.parameters[index]
            parameter._post_accumulate_grad_hooks = parameter._backward_hooks = None
            self._renew_hooks(index, parameter)

    def follow_module(self) -> None:
        """Follows the module to the parameters that it holds now."""
        replaced = self._found.replaced()
        for index in replaced:
            self._handles[index].remove()
            self._renew_hooks(index, self._found.replace(index))
        self.counters.replaced_parameters += len(replaced)

    def _renew_hooks(self, index: int, parameter: nn.Parameter) -> None:
        self._handles[index] = self._hook(index, parameter)
        if index in self._redistribute_hooks:
            self._redistribute_hooks[index][0].remove()
            self._redistribute_hooks[index] = self._hook_before(index)

    def settle(self) -> list[int]:
        """Brings what the hooks left aside into the arena; returns the tensors without a gradient on this rank.

        Raises:
            LateGradient: a gradient came, went, was exchanged or changed after its bucket had been launched.
        """
        if self.late is not None:
            raise self.late
        unused, written = [], set()
        views, counts, versions = self.views, self._counts, self._versions
        for index, parameter in enumerate(self._found.parameters):
            gradient = parameter.grad
            held = gradient is views[index]
            if not held or self._version(index) != versions[index]:
                if self.launched[self._bucket_of[index]]:
                    raise self._too_late(index)
                written.add(index)
            if gradient is None:
                unused.append(index)
            elif not held:
                self._take_over(index, parameter, gradient)
            # The memory holds an earlier step's gradient, or zeros, unless somebody wrote a gradient by hand.
            elif not counts[index] and not (index in written and local_tensor(gradient).any()):
                unused.append(index)
        self._trials.judge(written)
        self.counters.overlap_failed = self._trials.failed
        self.counters.unused += len(unused)
        return unused

    def _take_over(self, index: int, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        check_gradient(self._found.names[index], gradient, self.views[index])
        if index in self._placed:
            self._bind(index, parameter, gradient.detach())
        else:
            self.views[index].copy_(gradient.detach())
            parameter.grad = self.views[index]
        self.counters.settled += 1

    def given_by_others(self, unused: Sequence[int]) -> list[int]:
        """Tensors whose gradient another rank contributes, because this rank holds a copy of it."""
        without = set(unused)
        return [index for index, placed in self._placed.items() if not placed.contributes and index not in without]

    def copy_of(self, index: int, unused: Sequence[int]) -> torch.Tensor | None:
        """This rank's copy of a DTensor's gradient; None where it has none, or it is not equal along an axis."""
        gradient: Any = self._found.parameters[index].grad
        if gradient is None or index in unused:
            return None
        placed: Any = self._found.parameters[index]
        pairs = zip(gradient.placements, placed.placements, strict=True)
        if any(wanted.is_replicate() and not here.is_replicate() for here, wanted in pairs):
            return None
        return local_tensor(gradient)

    def digests(self, unused: Sequence[int]) -> list[int]:
        """One number per bucket, equal on two ranks when their hooks fired alike in this step, and both may launch it
        early, or neither."""
        refused = self._trials.refused
        marks = [2 * count + 1 for count in self._counts]
        for index in unused:
            marks[index] -= 1
        return [
            crc32(array("q", [self._micro_batches.hooks, refused(b), *(marks[i] for i in members)]).tobytes())
            for b, members in enumerate(self._buckets)
        ]

    def commit(self, unused: Sequence[int], absent: Sequence[int], stable_buckets: Sequence[int]) -> None:
        """The step is done: every parameter gets its reduced gradient, and buckets learn when they may go early."""
        parameters = self._found.parameters
        for index, placed in self._placed.items():
            placed.reset()
            parameters[index].grad = self.views[index] = placed.result
        for index in unused:
            parameters[index].grad = self.views[index]
        for index in absent:
            parameters[index].grad = None
        self.counters.absent += len(absent)
        self.counters.steps += 1
        self.counters.hooks += sum(self._counts)
        self.counters.launched_at_step += len(self._buckets) - sum(self.launched)
        expected, counts, most = self._expected, self._counts, self._most
        stable = set(stable_buckets)
        for b, members in enumerate(self._buckets):
            steady = self._early and b in stable and all(counts[i] for i in members)
            for i in members:
                most[i] = max(most[i], counts[i])
                expected[i] = most[i] if steady else 0
        self._micro_batches.learn(counts)
        self._trials.learn(stable)
        self._reset()

    def discard(self) -> None:
        """The step failed: its gradients are lost, and what is left of them must not reach an optimizer."""
        for index, placed in self._placed.items():
            placed.reset()
            self.views[index] = placed.result
        for parameter in self._found.parameters:
            parameter.grad = None
        self._reset()

    def _reset(self) -> None:
        self._counts[:] = [0] * len(self._counts)
        self.launched[:] = [False] * len(self.launched)
        for b, members in enumerate(self._buckets):
            self._left[b] = len(members) if members and self._expected[members[0]] else _NEVER
        self._versions[:] = self._versions_now()
        self._micro_batches.restart()
        self._before = replace(self.counters)
        self.step += 1
        self._trials.begin(self.step)

    def _versions_now(self) -> list[int]:
        found = [view._version for view in self.views]
        for index in self._placed:
            found[index] = self._version(index)
        return found

    def _version(self, index: int) -> int:
        view = self.views[index]
        return PlacedGradient.version(view) if index in self._placed else view._version

    def close(self) -> None:
        """Removes the hooks, and gives every parameter a gradient in memory of its own."""
        for handle in (*self._handles, *(handle for handle, _ in self._redistribute_hooks.values())):
            handle.remove()
        for parameter, view in zip(self._found.parameters, self.views, strict=True):
            if parameter.grad is view:
                with torch.no_grad():
                    parameter.grad = view.clone()
        self.views.clear()
