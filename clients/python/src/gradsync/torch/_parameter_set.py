"""The trainable parameters of a module: their names, where modules hold them, and what cannot be synchronised.

A parameter's index is its position in `named_parameters()`; tied weights are one parameter under their first name.
Everything that runs per step works on indices and lists: no lookup by name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ._dtensor import is_dtensor, local_tensor
from ._errors import ModuleRefused, ParameterChanged
from ._module_tree import ModuleTree, clean_name, walk

WIRE_DTYPES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float64: "float64",
}


@dataclass(frozen=True)
class Slot:
    """One place of the module tree that holds a parameter."""

    owner: dict[str, nn.Parameter | None]
    key: str
    name: str
    index: int  #: the index of the parameter; −1: frozen


@dataclass
class ParameterSet:
    tree: ModuleTree
    names: list[str] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)  #: dtypes of the gradients
    strides: list[tuple[int, ...]] = field(default_factory=list)  #: strides of the gradients
    frozen: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    known_ids: set[int] = field(default_factory=set)  #: ids of all parameters, also of frozen ones and of shards
    shard_ids: set[int] = field(default_factory=set)  #: ids of what the optimizer steps in their place
    placed: set[int] = field(default_factory=set)  #: indices of DTensors
    managed: dict[int, Any] = field(default_factory=dict)  #: index → what fully_shard knows of the parameter
    managed_places: dict[tuple[int, str], Any] = field(default_factory=dict)  #: (id of the module, key) → the same
    mixed_dtypes: bool = False  #: some gradient has another dtype than its parameter

    @property
    def device(self) -> torch.device:
        """Where the parameters are, all of them; there is at least one."""
        return self.parameters[0].device

    def replaced(self) -> list[int]:
        """Indices of parameters that the module no longer holds, as `load_state_dict(assign=True)` leaves them."""
        parameters = self.parameters
        found = {
            slot.index
            for slot in self.slots
            if slot.index >= 0 and slot.owner.get(slot.key) is not parameters[slot.index]
        }
        found.update(index for index, one in self.managed.items() if one.sharded_param is not parameters[index])
        return sorted(found)

    def replace(self, index: int) -> nn.Parameter:
        """Takes the module's new parameter in the place of the old one, if it is of the same kind."""
        old, name = self.parameters[index], self.names[index]
        if index in self.managed:
            held: dict[str, nn.Parameter | None] = {name: self.managed[index].sharded_param}
        else:
            held = {slot.name: slot.owner.get(slot.key) for slot in self.slots if slot.index == index}
        new = held[name]
        if any(parameter is not new for parameter in held.values()):
            raise ParameterChanged(
                name,
                f"the tied names {', '.join(held)} hold different parameters now",
                "tie them again after load_state_dict(assign=True), or attach again",
            )
        if new is None:
            raise ParameterChanged(name, "it was removed from the module", "attach again")
        if (
            new.shape != old.shape
            or gradient_dtype(new) != self.dtypes[index]
            or not new.requires_grad
            or getattr(new, "_spec", None) != getattr(old, "_spec", None)
        ):
            raise ParameterChanged(
                name,
                f"it was {describe(old)} and is {describe(new)}",
                "attach again: the ranks agreed on the former",
            )
        self.parameters[index] = new
        self.mixed_dtypes |= new.dtype is not self.dtypes[index]
        self.known_ids.discard(id(old))
        self.known_ids.add(id(new))
        return new

    def check_members(self) -> None:
        """Raises ParameterChanged if another parameter of the module requires a gradient now."""
        declared = set(map(id, self.parameters))
        frozen: list[tuple[str, nn.Parameter]] = []
        for name, module, key, parameter in self.tree.parameters():
            managed = self.managed_places.get((id(module), key))
            gathered = managed is not None and parameter is getattr(managed, "_unsharded_param", None)
            if id(parameter) in declared or gathered:  # fully_shard has put what it gathered in its place
                continue
            if parameter.requires_grad and id(parameter) not in self.known_ids:
                what = "its module was exchanged" if name in self.names else "it was added"
                raise ParameterChanged(
                    name,
                    f"{what} after attach, and no rank synchronises {describe(parameter)} of that name",
                    "close and attach again, on every rank, when the module has all its parameters",
                )
            frozen.append((name, parameter))
        self.frozen = frozen
        self.known_ids = declared.union(self.shard_ids, (id(parameter) for _, parameter in frozen))

    def check_frozen(self) -> None:
        for name, parameter in self.frozen:
            if parameter.requires_grad:
                raise ParameterChanged(
                    name,
                    "it was frozen when the module was attached and requires a gradient now",
                    "close and attach again after unfreezing, on every rank",
                )

    def check_known(self, groups: Sequence[dict[str, object]]) -> None:
        """Every parameter an optimizer would step must be synchronised, or the replicas drift apart."""
        for g, group in enumerate(groups):
            members = group["params"]
            assert isinstance(members, list)
            if self.known_ids.issuperset(map(id, members)):
                continue
            for i, parameter in enumerate(members):
                if parameter.requires_grad and id(parameter) not in self.known_ids:
                    raise ParameterChanged(
                        self._name_in_module(parameter) or f"param_groups[{g}]['params'][{i}]",
                        f"the optimizer holds {describe(parameter)} that the attached module does not have, "
                        "or did not have at attach",
                        "attach the module that has all parameters of the optimizer; make the optimizer after "
                        "load_state_dict(assign=True)",
                    )

    def holds_any(self, groups: Sequence[dict[str, object]]) -> bool:
        """Whether an optimizer steps any parameter of this module as it is now."""
        stepped = {id(parameter) for group in groups for parameter in group["params"]}  # type: ignore[attr-defined]
        if not self.known_ids.isdisjoint(stepped):
            return True
        return self.tree.changed() and any(id(parameter) in stepped for _, _, _, parameter in self.tree.parameters())

    def _name_in_module(self, wanted: nn.Parameter) -> str | None:
        return next((name for name, _, _, parameter in self.tree.parameters() if parameter is wanted), None)


def describe(parameter: torch.Tensor) -> str:
    grad = "" if parameter.requires_grad else " frozen"
    placed = f" placed {parameter.placements}" if is_dtensor(parameter) else ""  # type: ignore[attr-defined]
    return f"a{grad} {str(parameter.dtype).removeprefix('torch.')} parameter of shape {tuple(parameter.shape)}{placed}"


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """`grad_dtype` (torch ≥ 2.9) may ask for gradients wider than the parameter."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def gradient_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """What autograd gives a fresh gradient: the parameter's strides where these are dense, else row-major."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return row_major(parameter.shape)
        expected *= size
    return tuple(parameter.stride())


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def refuse_reduced(model: nn.Module) -> None:
    """Refuses modules whose framework reduces over all ranks: a second reduction would divide twice."""
    wrappers: list[tuple[type, str]] = [(nn.parallel.DistributedDataParallel, "DistributedDataParallel")]
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        wrappers.append((fsdp.FullyShardedDataParallel, "FullyShardedDataParallel"))
    for name, module in model.named_modules():
        for wrapper, class_name in wrappers:
            if isinstance(module, wrapper):
                raise ModuleRefused(
                    name or type(module).__name__,
                    f"{class_name} reduces its gradients itself",
                    "attach the plain module (gradsync replaces the wrapper)",
                )


def collect(model: nn.Module) -> ParameterSet:
    refuse_reduced(model)
    managed = fully_sharded(model)
    found = ParameterSet(ModuleTree(model), managed_places=managed)
    index_of: dict[int, int] = {}
    for name, module, key, parameter in walk(model):
        if id(parameter) not in index_of:
            index_of[id(parameter)] = add(found, name, parameter)
            found.known_ids.add(id(parameter))
        index = index_of[id(parameter)]
        if (id(module), key) not in found.managed_places:
            found.slots.append(Slot(module._parameters, key, name, index))
        elif index >= 0:
            found.managed[index] = managed[id(module), key]
    if not found.parameters:
        raise ModuleRefused(type(model).__name__, "it has no parameter that requires a gradient", "unfreeze some")
    return found


def fully_sharded(model: nn.Module) -> dict[tuple[int, str], Any]:
    """(id of the module, key) → torch's own record, of every parameter that fully_shard gathers and reduces."""
    # FSDPModule is in the second package before torch 2.6.
    homes: Any = map(sys.modules.get, ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"))
    kinds = tuple(home.FSDPModule for home in homes if hasattr(home, "FSDPModule"))
    found: dict[tuple[int, str], Any] = {}
    for module in model.modules():
        if not isinstance(module, kinds):
            continue
        module.reshard()  # after a forward in evaluation the root's parameters are still gathered
        state = module._get_fsdp_state()
        for group in getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group]):
            for one in group.fsdp_params:
                place = one._module_info
                owners = [place.module, *place.shared_modules]
                for owner, key in zip(owners, [place.param_name, *place.shared_param_names], strict=True):
                    found[id(owner), key] = one
    return found


def add(found: ParameterSet, name: str, parameter: nn.Parameter) -> int:
    if isinstance(parameter, UninitializedParameter):
        raise ModuleRefused(name, "it has no shape yet", "run one forward pass of the lazy module before attach")
    if not parameter.requires_grad:
        found.frozen.append((name, parameter))
        return -1
    if parameter.device.type not in ("cpu", "cuda"):
        raise ModuleRefused(name, f"it is on device {parameter.device}", "move the module to a GPU or to the CPU")
    if found.parameters and parameter.device != found.device:
        raise ModuleRefused(
            name,
            f"it is on device {parameter.device}, {found.names[0]!r} on {found.device}",
            "a rank's gradients lie on one device: move the module there, or attach its parts with a job= of their own",
        )
    dtype = gradient_dtype(parameter)
    if dtype not in WIRE_DTYPES:
        raise ModuleRefused(
            name, f"its gradient is {dtype}", f"use one of {', '.join(WIRE_DTYPES.values())}, or freeze it"
        )
    placed = is_dtensor(parameter)
    if placed and dtype is not parameter.dtype:
        raise ModuleRefused(
            name, f"it is a DTensor of {parameter.dtype} with grad_dtype {dtype}", "leave grad_dtype as it is"
        )
    if placed:
        found.placed.add(len(found.names))
    found.names.append(name)
    found.parameters.append(parameter)
    found.dtypes.append(dtype)
    found.mixed_dtypes |= parameter.dtype is not dtype
    found.strides.append(gradient_strides(local_tensor(parameter)))
    return len(found.names) - 1


def unsynchronised_buffers(model: nn.Module) -> list[str]:
    """Persistent module buffers (running statistics and the like): they are state, and nothing keeps them equal."""
    return [
        clean_name(f"{prefix}.{key}" if prefix else key)
        for prefix, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and key not in module._non_persistent_buffers_set
    ]
