"""Weights at attach: a fingerprint that says whether ranks start from equal bits, and their distribution by rank 0.

Distribution goes through the sidecar itself, as a step whose tensors are sums with one contributor: rank 0 writes, the
others mark everything unused, and a sum of one summand is that summand. What has no dtype on the wire (integer, bool
and complex state) travels as its bytes, each as a float32 of 0…255, which is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

import gradsync
from gradsync._placements import Axes, Placement

from .._digests import bytes_of, layout_digest, weight_digests
from .._dtensor import is_dtensor, local_tensor
from .._errors import ModuleRefused
from .._module_tree import clean_name, walk
from .._parameter_set import WIRE_DTYPES, ParameterSet

if TYPE_CHECKING:
    from gradsync import Job


def fingerprints(found: ParameterSet, check_weights: bool) -> list[str]:
    """One fingerprint per trainable parameter. The layout is always part of it: ranks add arena bytes, so one that
    holds a parameter in channels_last and one that does not would add different elements."""
    layouts = [f"layout={layout_digest(strides)}" for strides in found.strides]
    if not check_weights:
        return layouts
    digests = weight_digests([local_tensor(parameter) for parameter in found.parameters])
    return [f"{layout} weights={digest}" for layout, digest in zip(layouts, digests, strict=True)]


def module_state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every distinct parameter and buffer, frozen and non-persistent ones included, in module order."""
    seen: set[int] = set()
    for name, _, _, parameter in walk(model):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield name, parameter
    for name, buffer in model.named_buffers():
        yield clean_name(name), buffer


def broadcast(job: Job, model: nn.Module, mesh: str, axes: Sequence[str], timeout: float | None) -> None:
    """Gives every rank the parameters and buffers of rank 0, bit for bit (a NaN in a 16-bit float comes out quiet)."""
    state = [(name, tensor) for name, tensor in module_state(model) if tensor.numel()]
    for name, tensor in state:
        if is_dtensor(tensor):
            raise ModuleRefused(
                name,
                "it is a DTensor, of which rank 0 has a part",
                "load equal weights, and attach with weights='check'",
            )
    summed: dict[Axes, Placement] = {axis: gradsync.Partial("sum") >> gradsync.Replicate() for axis in axes}
    grads = job.declare(
        [
            gradsync.Tensor(
                name,
                tuple(tensor.shape) if tensor.dtype in WIRE_DTYPES else (tensor.numel() * tensor.element_size(),),
                dtype=WIRE_DTYPES.get(tensor.dtype, "float32"),
                mesh=mesh,
                placements=summed,
            )
            for name, tensor in state
        ],
        timeout=timeout,
    )
    with torch.no_grad():
        if job.rank == 0:
            for name, tensor in state:
                wire = grads.input(name).torch()
                wire.copy_(tensor if tensor.dtype in WIRE_DTYPES else bytes_of(tensor))
        else:
            for index in range(len(state)):
                grads.mark_unused_index(index)
        grads.finish(ready="all", timeout=timeout)
        if job.rank == 0:
            return
        for name, tensor in state:
            received = grads.output(name).torch()
            if tensor.dtype not in WIRE_DTYPES:
                received = received.to(torch.uint8).view(tensor.dtype).reshape(tensor.shape)
            tensor.copy_(received)
