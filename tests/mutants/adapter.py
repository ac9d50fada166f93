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
        "placed-buckets-go-early",
        "Buckets of DTensors are launched by the counts of their hooks.",
        "_recorder.py",
        "steady = b in stable and b not in self._waiting and",
        "steady = b in stable and",
    ),
)
