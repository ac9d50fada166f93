"""Finds the gradients of one rank where they are now; frameworks make new ones every step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

import gradsync
from gradsync._rounding import NARROW, rounding
from gradsync._step._declared import some_of
from gradsync.errors import UsageError

from .._dtensor import is_dtensor, is_partial, local_tensor
from .._errors import GradientRefused, ParameterChanged
from .._module_tree import ModuleTree, model_of_walk
from .._statistics._measurer import Measurer

__all__ = ["HeldGradients"]

_GRADIENT, _SPEC, _LOCAL, _DTYPE = map(operator.attrgetter, ("grad", "_spec", "_local_tensor", "dtype"))


class HeldGradients:
    """Finds, checks and measures the gradients of `parameters`, which were declared as `tensors`."""

    def __init__(self, parameters: Sequence[nn.Parameter], tensors: Sequence[gradsync.Tensor]) -> None:
        self._parameters = list(parameters)
        self.names = [tensor.name for tensor in tensors]  #: in the order of the declaration
        self._known = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        self._accepted: list[torch.Tensor] = []  # the last list of parameters that was found to be right
        self._tree: ModuleTree | None = None  # the model that the list came from
        self._is_dtensor = [is_dtensor(parameter) for parameter in self._parameters]
        self._all_dtensors = all(self._is_dtensor)
        self._specs: list[Any] = [None] * len(self._parameters)  # specs of DTensor gradients that were checked
        self._dtypes: list[torch.dtype] = [getattr(torch, tensor.dtype) for tensor in tensors]
        self._locals = [local_tensor(parameter) for parameter in self._parameters]
        self.device = self._locals[0].device if self._locals else torch.device("cpu")

    def measurer(self, norm_type: float) -> Measurer:
        """Makes a measurer for these gradients."""
        return Measurer([(t.numel(), d, t.device) for t, d in zip(self._locals, self._dtypes)], norm_type)

    def holds_any(self, groups: Iterable[dict[str, Any]]) -> bool:
        """Whether an optimizer with these groups steps one of the parameters."""
        return any(id(parameter) in self._known for group in groups for parameter in group["params"])

    def rounding(self) -> float:
        """How far a framework's norm of these gradients may be from the exact one by rounding alone, relatively.

        Norms of float64 gradients often go through float32 on their way here.
        """
        if any(dtype.itemsize < 4 for dtype in self._dtypes):
            return NARROW
        return rounding(23, len(self._locals), max((one.numel() for one in self._locals), default=1))

    def common_mesh(self) -> Any:
        """The mesh of the parameters if they are all DTensors on one, else None."""
        meshes = [parameter.device_mesh if is_dtensor(parameter) else None for parameter in self._parameters]  # type: ignore[attr-defined]
        return meshes[0] if meshes and all(mesh == meshes[0] for mesh in meshes) else None

    def gather(self) -> list[torch.Tensor | None]:
        """This rank's part of every gradient, as it is now.

        Raises:
            GradientRefused: one is not reduced, not placed like its parameter, sparse, or of another dtype.
        """
        as_before = self._gather_as_before()
        if as_before is not None:
            return as_before
        found: list[torch.Tensor | None] = []
        specs = self._specs
        for index, parameter in enumerate(self._parameters):
            gradient: Any = parameter.grad
            if gradient is None:
                found.append(None)
                continue
            if self._is_dtensor[index]:
                spec = getattr(gradient, "_spec", None)
                if spec is None or spec is not specs[index]:
                    self._check_placements(index, gradient)
                    specs[index] = spec
                gradient = gradient._local_tensor
                if type(gradient) is not torch.Tensor and hasattr(gradient, "wait"):
                    gradient = gradient.wait()
            elif is_dtensor(gradient):
                self._refuse(index, f"its gradient is a DTensor {gradient.placements}, the parameter is none")
            if gradient.dtype is not self._dtypes[index]:
                self._refuse(index, f"its gradient is {gradient.dtype}, declared was {self._dtypes[index]}")
            if gradient.is_sparse:
                self._refuse(index, "its gradient is sparse")
            found.append(gradient)
        return found

    def _gather_as_before(self) -> list[torch.Tensor | None] | None:
        """The same for DTensors alone whose specs are those that were right before; else None."""
        if not self._all_dtensors:
            return None
        gradients = list(map(_GRADIENT, self._parameters))
        try:
            # This is quick, because as a rule the specs are the same objects.
            if list(map(_SPEC, gradients)) != self._specs:
                return None
            found: list[Any] = list(map(_LOCAL, gradients))
        except AttributeError:  # None, or a plain tensor
            return None
        plain = set(map(type, found)) == {torch.Tensor}
        return found if plain and list(map(_DTYPE, found)) == self._dtypes else None

    def check_parameters(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> None:
        """Raises unless these are the parameters of init(), those without a gradient perhaps left out."""
        model = model_of_walk(parameters)
        if model is not None and self._tree is not None and self._tree.is_of(model) and not self._tree.changed():
            return
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        accepted = self._accepted
        if len(given) == len(accepted) and all(map(operator.is_, given, accepted)):
            self._tree = ModuleTree(model) if model is not None else self._tree
            return
        strange = [p for p in given if id(p) not in self._known and (p.requires_grad or p.grad is not None)]
        if strange:
            raise ParameterChanged(
                f"a parameter of shape {tuple(strange[0].shape)}",
                f"it was not in the model of init() ({len(strange)} such)",
                "call init() again after the model changed",
            )
        wanted = {id(p) for p in given}
        left_out = [index for key, index in self._known.items() if key not in wanted]
        with_gradient = [self.names[index] for index in left_out if self._parameters[index].grad is not None]
        if with_gradient:
            raise UsageError(
                f"{len(with_gradient)} parameters of init() that have gradients are not among those given: "
                f"{some_of(with_gradient)}; the norm is of the whole model: give all parameters that this rank holds"
            )
        frozen = len(given) != len(self._known)  # frozen parameters may get gradients later
        self._accepted = [] if left_out or frozen else given
        self._tree = ModuleTree(model) if model is not None and self._accepted else None

    def check_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raises unless these are all gradients that this rank holds."""
        given = set(map(id, tensors))
        held = {id(p.grad): self.names[i] for i, p in enumerate(self._parameters) if p.grad is not None}
        left_out = [name for key, name in held.items() if key not in given]
        if left_out or given - held.keys():
            raise UsageError(
                f"get_total_norm() wants the gradients of all parameters of init(); left out: {some_of(left_out)}, "
                f"unknown: {len(given - held.keys())}; give [p.grad for p in parameters if p.grad is not None]"
            )

    def _check_placements(self, index: int, gradient: Any) -> None:
        parameter: Any = self._parameters[index]
        wanted = tuple(parameter.placements)
        if not is_dtensor(gradient):
            self._refuse(index, f"its gradient is a plain tensor, the parameter a DTensor {wanted}")
        partial = [placement for placement in gradient.placements if is_partial(placement)]
        if partial:
            raise GradientRefused(
                self.names[index],
                f"its gradient is {tuple(gradient.placements)}: it is not reduced",
                "before clipping: p.grad = p.grad.redistribute(placements=p.placements)",
            )
        if tuple(gradient.placements) != wanted or gradient.device_mesh != parameter.device_mesh:
            self._refuse(index, f"its gradient is {tuple(gradient.placements)}, the parameter {wanted}")

    def _refuse(self, index: int, found: str) -> None:
        raise GradientRefused(self.names[index], found, "make the gradient like its parameter, or init() again")
