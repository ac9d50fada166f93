"""Which gradients have a place in the arena."""

from __future__ import annotations

import torch

from .._dtensor import is_dtensor
from .._errors import GradientRefused

__all__ = ["check_gradient"]


def check_gradient(name: str, gradient: torch.Tensor, view: torch.Tensor) -> None:
    """Compares a gradient with the view of the arena that it is to fill.

    Raises:
        GradientRefused: it is sparse, or of another kind, mesh, dtype or shape.
    """
    if gradient.layout is not torch.strided:
        raise GradientRefused(
            name, f"its gradient has layout {gradient.layout}", "only dense gradients are reduced: use sparse=False"
        )
    if is_dtensor(gradient) != is_dtensor(view):
        kinds = ("a plain tensor", "a DTensor")
        raise GradientRefused(
            name,
            f"its gradient is {kinds[is_dtensor(gradient)]}, the parameter {kinds[is_dtensor(view)]}",
            "leave gradients as backward makes them",
        )
    if is_dtensor(gradient) and gradient.device_mesh != view.device_mesh:  # type: ignore[attr-defined]
        raise GradientRefused(
            name,
            f"its gradient lies on {gradient.device_mesh}, the parameter on {view.device_mesh}",  # type: ignore[attr-defined]
            "leave gradients as backward makes them",
        )
    if gradient.dtype is not view.dtype or gradient.shape != view.shape:
        raise GradientRefused(
            name,
            f"its gradient is {gradient.dtype} {tuple(gradient.shape)}, declared {view.dtype} {tuple(view.shape)}",
            "attach again after the dtype or shape of a parameter changed",
        )
