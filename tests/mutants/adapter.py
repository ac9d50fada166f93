"""Faults in what the torch adapter hands to the sidecar of gradients that a framework placed."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["ADAPTER"]


def adapter(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "adapter", f"clients/python/src/gradsync/torch/_synced/{file}", old, new)


ADAPTER = (
    adapter(
        "every-copy-counts",
        "Equal copies of a gradient are added up over tp.",
        "_placed_gradient.py",
        "                contributes &= self._place[dim] == 0",
        "                contributes &= True",
    ),
    adapter(
        "old-bytes-beside-a-slice",
        "What lies beside a rank's slice of a gradient stays from the step before.",
        "_placed_gradient.py",
        "                self._view.zero_()",
        "                pass",
    ),
    adapter(
        "summands-taken-for-the-sum",
        "A gradient that sequence parallelism left unreduced is brought to its parameter's placement by nobody.",
        "_placements.py",
        'placement if one.managed else gradsync.Partial("sum") >> placement',
        "placement",
    ),
    adapter(
        "mean-over-tp",
        "What tensor parallelism left unreduced is averaged.",
        "_placements.py",
        'gradsync.Partial("sum") >> placement',
        'gradsync.Partial("mean") >> placement',
    ),
    adapter(
        "shards-reduced-again",
        "Gradients that fully_shard reduced are summed along its axis once more.",
        "_placements.py",
        "    by_fully_shard = managed.get(id(parameter))",
        "    by_fully_shard = None",
    ),
    adapter(
        "data-seen-alike",
        "Replicas of a placed parameter are taken to see equal data.",
        "_placements.py",
        "if (one.mesh, axis) in splitting else",
        "if one.by_axis or (one.mesh, axis) in splitting else",
    ),
    adapter(
        "result-as-it-was-placed",
        "After sync a gradient keeps the placements that autograd gave it.",
        "_recorder.py",
        "            parameters[index].grad = self.views[index] = placed.result",
        "            pass",
    ),
    adapter(
        "placed-buckets-go-untried",
        "Buckets of DTensors are launched by the counts of their hooks.",
        "_trials.py",
        "        if bucket not in self._buckets:",
        "        if bucket in self._buckets:",
    ),
    adapter(
        "trials-see-no-bits",
        "A trial goes by versions alone, which `_foreach` writes to DTensors do not move.",
        "_trials.py",
        "if tensor in written or self._fingerprint(tensor) != self._prints[tensor]:",
        "if tensor in written:",
    ),
    adapter(
        "trials-see-no-versions",
        "A trial goes by bits alone, which a clip that clips nothing yet leaves as they are.",
        "_trials.py",
        "if tensor in written or self._fingerprint(tensor) != self._prints[tensor]:",
        "if self._fingerprint(tensor) != self._prints[tensor]:",
    ),
    adapter(
        "trials-of-one-rank",
        "A trial counts although another rank's hooks fired otherwise, or it refuses.",
        "_trials.py",
        "                self._passed[bucket] += bucket in stable",
        "                self._passed[bucket] += 1",
    ),
    adapter(
        "refusal-kept-to-itself",
        "A rank whose gradients are changed does not tell the others, which go on launching early.",
        "_recorder.py",
        "self._micro_batches.hooks, refused(b), *",
        "self._micro_batches.hooks, *",
    ),
    adapter(
        "copies-compared-half-reduced",
        "Buckets with copies are launched early in the steps in which the copies are compared.",
        "_trials.py",
        "return bool(self.failed) or (bucket in self._compared and self._checked())",
        "return bool(self.failed)",
    ),
    adapter(
        "early-copies-all-count",
        "Before an early launch a rank does not say that its copy is not summed.",
        "_recorder.py",
        "        if not self._placed[index].contributes:",
        "        if False:",
    ),
    adapter(
        "launched-foreach-unseen",
        "After a launch `_foreach` writes to a DTensor pass.",
        "_launched_gradient.py",
        "        if isinstance(value, (list, tuple)):",
        "        if isinstance(value, tuple):",
    ),
    adapter(
        "launched-data-unguarded",
        "After a launch the memory may be written by way of `.data` and of views.",
        "_launched_gradient.py",
        "                    refuse_writes(one, source.late)",
        "                    pass",
    ),
    adapter(
        "shards-not-gathered",
        "After the step of an optimizer of shards each rank keeps the old rows of the others.",
        "_sharded.py",
        "                if rank != self._place and last > first:",
        "                if rank == self._place and last > first:",
    ),
    adapter(
        "whole-gradients-stepped",
        "The optimizer of shards may be one of whole parameters.",
        "_sharded.py",
        "                if id(parameter) in whole:",
        "                if id(parameter) in self._index:",
    ),
)
