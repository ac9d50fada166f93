"""The gradient of one DTensor parameter, over this rank's part of the arena.

Autograd may place a gradient otherwise than its parameter, and adds the next micro-batch to it by its placements. So a
gradient keeps its placements and only its memory is exchanged: a summand of a replicated parameter (`Partial`) fills
the whole part, a rank's own slice (`Shard`) lies in it between zeros, and only one rank contributes of equal copies
(`Replicate`). A gradient with other placements is redistributed to the parameter's placements before autograd adds it,
as fully_shard does. After sync the same memory is shown with the parameter's placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._dtensor import local_tensor

__all__ = ["PlacedGradient"]


@dataclass(frozen=True)
class _Form:
    """How gradients of certain placements lie in the arena."""

    placements: tuple[Any, ...]  #: the placements that gradients are redistributed to, mostly their own
    slices: tuple[tuple[int, int, int], ...]  #: (dim, start, length) of this rank's part of the memory
    contributes: bool  #: whether this rank's copy is the one that is summed


class PlacedGradient:
    """`view`: the arena's memory, shaped like the local tensor. `managed`: fully_shard reduced along its mesh."""

    def __init__(self, parameter: torch.Tensor, view: torch.Tensor, managed: bool) -> None:
        spec: Any = parameter._spec  # type: ignore[attr-defined]
        self._view = view
        self._spec = spec
        self._place: list[int] = spec.mesh.get_coordinate()
        self._summed = [
            p.is_replicate() and not managed for p in spec.placements
        ]  # per mesh dim: the sidecar sums along it
        self._forms: dict[tuple[Any, ...], _Form] = {}
        self.result = _dtensor(view, spec)  #: what the optimizer gets
        self.contributes = self._form(tuple(spec.placements)).contributes

    def redistributed(self, gradient: Any) -> Any:
        """The gradient, redistributed by a collective if its placements cannot lie in the arena."""
        form = self._form(tuple(gradient.placements))
        if form.placements == tuple(gradient.placements):
            return gradient
        return gradient.redistribute(placements=form.placements)

    def bind(self, gradient: Any) -> torch.Tensor:
        """Moves a gradient into the arena, over what was there; returns the new `p.grad`."""
        gradient = self.redistributed(gradient)
        form = self._form(tuple(gradient.placements))
        part = self._view
        for dim, start, length in form.slices:
            part = part.narrow(dim, start, length)
        local = local_tensor(gradient)
        here = local.numel() > 0 and local.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        in_place = here and local.data_ptr() == part.data_ptr() and local.stride() == part.stride()
        if form.slices or not in_place:
            local = local.clone() if here else local
            if form.slices:
                self._view.zero_()
            part.copy_(local)
        self.contributes = form.contributes
        return _dtensor(part, gradient._spec)

    def reset(self) -> None:
        """The step is over: the memory holds its result, or nothing that is used."""
        self.contributes = self._form(tuple(self._spec.placements)).contributes

    @staticmethod
    def version(gradient: Any) -> int:
        """Autograd counts on the DTensor, fully_shard on what it holds."""
        return int(gradient._version) + int(gradient._local_tensor._version)

    def _form(self, placements: tuple[Any, ...]) -> _Form:
        found = self._forms.get(placements)
        if found is None:
            found = self._forms[placements] = self._form_of(placements)
        return found

    def _form_of(self, placements: tuple[Any, ...]) -> _Form:
        own = tuple(self._spec.placements)
        kept = [
            here if self._summed[dim] and _is_kept(here) else there
            for dim, (here, there) in enumerate(zip(placements, own, strict=True))
        ]
        split = [
            p.dim for p in (*own, *(p for p, summed in zip(kept, self._summed, strict=True) if summed)) if p.is_shard()
        ]
        if len(set(split)) != len(split):  # cut twice along one dim, which no framework does
            kept = [there if here.is_shard() else here for here, there in zip(kept, own, strict=True)]
        slices, contributes = [], True
        for dim, placement in enumerate(kept):
            if not self._summed[dim]:
                continue
            if placement.is_replicate():
                contributes &= self._place[dim] == 0
            elif placement.is_shard():
                held, parts = self._view.shape[placement.dim], self._spec.mesh.size(dim)
                size = -(-held // parts)  # as torch.chunk cuts
                start = min(held, size * self._place[dim])
                slices.append((placement.dim, start, min(size, held - start)))
        return _Form(tuple(kept), tuple(slices), contributes)


def _is_kept(placement: Any) -> bool:
    if placement.is_partial():
        return bool(placement.reduce_op == "sum")
    return bool(placement.is_replicate() or type(placement).__name__ == "Shard")


def _dtensor(local: torch.Tensor, spec: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    make: Any = DTensor  # from_local communicates or checks, and takes ten times as long
    made: torch.Tensor = make(local, spec, requires_grad=False)
    return made
