"""Faults in the Python client."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["CLIENT"]


def client(name: str, fault: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "client", f"clients/python/src/gradsync/{file}", old, new)


CLIENT = (
    client(
        "norm-filter-on-the-clip-set",
        "What another name counts already (a tied copy, here: the last block held) stays unclipped.",
        "torch/_statistics/_arranged.py",
        "        for block in self.blocks:\n            first =",
        "        for block in self.blocks[:-1]:\n            first =",
    ),
    client(
        "clipped-twice",
        "The coefficient multiplies two times.",
        "torch/_reduced/_session.py",
        "        arranged.multiply(report.coefficient)",
        "        arranged.multiply(report.coefficient**2)",
    ),
    client(
        "device-scalar-in-bf16",
        "A GPU gets the coefficient as a tensor, which its kernels round to the dtype of 16-bit gradients.",
        "torch/_statistics/_arranged.py",
        "        return coefficient\n    return torch.tensor(coefficient, ",
        "        return torch.tensor(coefficient, dtype=torch.float32)\n    return torch.tensor(coefficient, ",
    ),
    client(
        "client-float32-accumulation",
        "The client sums squares in float32.",
        "torch/_statistics/_measurer.py",
        "self._memory = torch.empty(CHUNK, dtype=torch.float64)",
        "self._memory = torch.empty(CHUNK, dtype=torch.float32)",
    ),
    client(
        "negative-values-have-no-maximum",
        "The largest value is taken without its sign being dropped.",
        "torch/_statistics/_measurer.py",
        "        out[3] = torch.maximum(piece.amax(1), piece.amin(1).neg_())",
        "        out[3] = piece.amax(1).clamp_min(0)",
    ),
    client(
        "every-power-is-quick",
        "Powers that a sum of plain values does not stand for are left out.",
        "torch/_statistics/_measurer.py",
        "self._quick = norm_type in (1, 2)",
        "self._quick = norm_type < 4",
    ),
    client(
        "last-block-dropped",
        "Of a gradient that is summed in pieces the last is left out.",
        "torch/_statistics/_measurer.py",
        "torch.split(piece, chunk, 1)  # of one row",
        "torch.split(piece, chunk, 1)[:-1]",
    ),
    client(
        "last-part-dropped",
        "Of a large gradient that is summed by itself the last part is left out.",
        "torch/_statistics/_cpu_sums.py",
        "        torch.sum(found, 0, out=out)",
        "        torch.sum(found[:-1], 0, out=out)",
    ),
    client(
        "zeros-have-no-maximum",
        "A gradient of zeros is said to have a maximum that was not taken.",
        "torch/_statistics/_measurer.py",
        "                out[3] = (out[0] != 0).double().mul_(NOT_TAKEN)  #",
        "                out[3] = NOT_TAKEN  #",
    ),
    client(
        "nan-counted-as-infinite",
        "The client does not tell NaN from infinity.",
        "torch/_statistics/_exact_sums.py",
        "found[5] += torch.isnan(part).sum()",
        "found[5] += torch.isinf(part).sum()",
    ),
    client(
        "fingerprint-without-places",
        "The fingerprint is a sum of bits: swapped elements have the same.",
        "torch/_statistics/_fingerprints.py",
        "    total += _mixed(found).sum(1)",
        "    total += numbers.sum(1)",
    ),
    client(
        "client-ep-forgotten",
        "A slice of stacked experts is declared as the whole, replicated.",
        "torch/_placed.py",
        "        shape[dim] *= size\n        placements[axes] = gradsync.Shard(dim)",
        "        placements[axes] = gradsync.Replicate()",
    ),
    client(
        "client-own-experts-forgotten",
        "Experts that each rank has for itself are declared as replicas.",
        "torch/_placed.py",
        "    placements[axes] = gradsync.Only(mesh.at[axes[0]])",
        "    placements[axes] = gradsync.Replicate()",
    ),
    client(
        "client-pp-forgotten",
        "A stage's parameters are declared as replicated over the stages.",
        "torch/_placed.py",
        "gradsync.Only(mesh.at[axis]) if at_stage else gradsync.Replicate()",
        "gradsync.Only(mesh.at[axis]) if at_stage and size > 99 else gradsync.Replicate()",
    ),
    client(
        "strided-shards-outermost",
        "FSDP over TP is declared as cut by FSDP first.",
        "torch/_placed.py",
        "    while factor > 1 and before < len(order):",
        "    while factor > 1 and before + factor < 0:",
    ),
    client(
        "experts-cut-last",
        "Stacked experts that FSDP shards are declared as cut by FSDP first.",
        "torch/_placed.py",
        "        order[:0] = axes",
        "        order.extend(axes)",
    ),
    client(
        "partial-gradient-measured",
        "A DTensor gradient that nobody reduced is measured as it is.",
        "torch/_reduced/_held_gradients.py",
        "        if partial:",
        "        if partial and index < 0:",
    ),
    client(
        "stamp-without-epoch",
        "Rows of an earlier epoch have the stamp of this one.",
        "_job.py",
        "        return stamp_of(self.epoch, self.attempt)",
        "        return stamp_of(1, self.attempt)",
    ),
    client(
        "rows-kept-for-the-next-step",
        "What was written for one step passes for the next.",
        "_step/_reduced.py",
        "        self._written = bytearray(len(self.tensors))  # what",
        "        self._written = bytearray(self._written)  # what",
    ),
    client(
        "low-half-of-a-row-lost",
        "Rows have no low half.",
        "_step/_row.py",
        "        return high, float(total - Fraction(high))",
        "        return high, 0.0",
    ),
    client(
        "never-a-fingerprint",
        "The client takes no fingerprints, whatever the daemon asks for.",
        "torch/_reduced/_session.py",
        "self._measurer.arrange(gradients, self._grads.check)",
        "self._measurer.arrange(gradients, False)",
    ),
    client(
        "observed-by-another-steps-check",
        "Mode observe arranges the gradients by the check of the step before.",
        "torch/_reduced/_observer.py",
        "self._measurer.arrange(gradients, self._checked)",
        "self._measurer.arrange(gradients, not self._checked)",
    ),
    client(
        "model-checked-once-and-for-all",
        "A walk of the model counts as the one that was right, whatever became of the model.",
        "torch/_reduced/_held_gradients.py",
        "self._tree.is_of(model) and not self._tree.changed()",
        "self._tree.is_of(model)",
    ),
    client(
        "dtensors-checked-once-and-for-all",
        "The placements of a gradient are looked at in the first step alone.",
        "torch/_reduced/_held_gradients.py",
        "                if spec is None or spec is not specs[index]:",
        "                if specs[index] is None:",
    ),
)
