"""DeepSpeed: its optimizers learn the norm inside `step()`, from gradients that `p.grad` does not have.

ZeRO 1 and 2 lay the parameters of a group one after the other, and each rank of data parallelism has an equal piece of
the whole: some parameters, the first and last perhaps in part. ZeRO 3 gives each rank a piece of every parameter. The
bfloat16 optimizer has whole gradients in float32, and the float16 ones have them in `p.grad`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import gradsync

from .._model_parts import trainable_parameters
from ._stand_ins import NotSeen, StandIn, Stepping

__all__ = ["DeepSpeed"]


class DeepSpeed:
    """Reads the optimizers that `deepspeed.initialize` makes."""

    def __init__(self, roots_of: Callable[[Sequence[torch.Tensor]], list[torch.nn.Module]]) -> None:
        self._roots_of = roots_of
        self._scale: dict[int, float] = {}

    @staticmethod
    def living() -> list[Any]:
        return sorted((one for one in gc.get_objects() if _kind(one) is not None), key=_size)

    def read(self, optimizer: Any, world_size: int) -> Stepping:
        kind = _kind(optimizer)
        if kind is None:
            raise NotSeen(f"{_version()}: not seen, because {type(optimizer).__name__} is not known")
        why = _refusal(optimizer, world_size)
        if why is not None:
            raise NotSeen(f"{_version()}: not seen, because {why}")
        try:
            return _READERS[kind](optimizer, self._names(optimizer))
        except Exception as error:
            raise NotSeen(
                f"{_version()}: not seen, because its {kind} is not as in the versions that are known: {error!r}"
            ) from error

    def before(self, optimizer: Any) -> None:
        """Notes the loss scale, which a step may change before it divides its norm by it."""
        self._scale[id(optimizer)] = _scale_of(optimizer)

    def norm(self, optimizer: Any) -> Any:
        found = getattr(optimizer, "_global_grad_norm", None)
        if found is None:
            raise NotSeen(
                f"{_version()}: not seen, because the step computes no norm; leave compute_grad_norm as it is, true"
            )
        # That of the unfused one is in units of the scaled loss.
        return found / self._scale[id(optimizer)] if _kind(optimizer) == "FP16_UnfusedOptimizer" else found

    @staticmethod
    def max_norm(optimizer: Any) -> float | None:
        return float(getattr(optimizer, "clip_grad", 0.0) or 0.0) or None

    def _names(self, optimizer: Any) -> Mapping[int, str]:
        held = [one for group in _groups(optimizer) for one in group]
        names = {id(one): name for name, one in trainable_parameters(self._roots_of(held)).items()}
        # In the engine the model is called `module`.
        return {key: name.removeprefix("module.") for key, name in names.items()}


def _version() -> str:
    return f"DeepSpeed {getattr(sys.modules.get('deepspeed'), '__version__', 'of an unknown version')}"


def _kind(optimizer: object) -> str | None:
    kind = type(optimizer)
    if not str(kind.__module__).startswith("deepspeed."):
        return None
    return next((one.__name__ for one in kind.__mro__ if one.__name__ in _READERS), None)


def _groups(optimizer: Any) -> list[list[torch.nn.Parameter]]:
    """The model's parameters, as the optimizer groups them."""
    for name in ("bit16_groups", "bf16_groups", "fp16_groups"):
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    raise AttributeError("no groups of 16-bit parameters")


def _size(optimizer: Any) -> list[tuple[int, ...]]:
    return [tuple(getattr(one, "ds_shape", one.shape)) for group in _groups(optimizer) for one in group]


def _refusal(optimizer: Any, world_size: int) -> str | None:
    if getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False):
        return "with offload_optimizer the gradients leave the device piece by piece; audit a run without it"
    if getattr(optimizer, "has_moe_layers", False):
        return "its MoE layers have experts of their own on each rank, and their norm is averaged over them"
    if any(getattr(one, "use_muon", False) for group in _groups(optimizer) for one in group):
        return "Muon's updates are in the place of gradients"
    group = getattr(optimizer, "dp_process_group", None)
    size = world_size if group is None else dist.get_world_size(group)
    if size != world_size or getattr(optimizer, "mpu", None) is not None:
        return (
            f"its data parallelism spans {size} of {world_size} ranks, and how model or sequence parallelism cuts the "
            "rest is not known"
        )
    return None


def _scale_of(optimizer: Any) -> float:
    config = getattr(optimizer, "loss_scale_config", None)
    if config is not None:
        return float(config.cur_scale) if getattr(config, "use_grad_scaling", True) else 1.0
    return float(getattr(optimizer, "loss_scale", 1.0))


def _unscaled(gradient: torch.Tensor | None, optimizer: Any) -> torch.Tensor | None:
    scale = _scale_of(optimizer)
    return gradient if gradient is None or scale == 1.0 else gradient.float() / scale


def _along_data(placement: gradsync.Shard | gradsync.Replicate) -> dict[str, gradsync.Shard | gradsync.Replicate]:
    return {"dp": placement}


def _zero(optimizer: Any, names: Mapping[int, str]) -> Stepping:
    stand_ins: list[StandIn] = []
    stands_for: dict[int, Sequence[StandIn]] = {}
    for i, group in enumerate(optimizer.round_robin_bit16_groups):
        rank = dist.get_rank(optimizer.real_dp_process_group[i])
        starts, places = optimizer.grad_start_offset[i][rank], optimizer.grad_partition_insertion_offset[i][rank]
        number = {id(parameter): k for k, parameter in enumerate(optimizer.params_in_partition[i])}
        own: list[StandIn] = []
        for parameter in group:
            key, size = optimizer.get_param_id(parameter), 0
            if id(parameter) in number:
                size = min(parameter.numel() - starts[key], optimizer.partition_size[i] - places[key])
            read = _piece(optimizer, i, number.get(id(parameter)), size)
            own.append(_flat(names[id(parameter)], parameter.numel(), starts.get(key, 0), size, parameter.device, read))
        stand_ins += own
        stands_for[id(optimizer.single_partition_of_fp32_groups[i])] = own
    return Stepping(stand_ins, stands_for)


def _piece(optimizer: Any, group: int, number: int | None, size: int) -> Callable[[], torch.Tensor | None]:
    def read() -> torch.Tensor | None:
        held = optimizer.averaged_gradients.get(group)
        if held is None:
            return None
        if number is None:
            return torch.empty(0, device=optimizer.device)
        pieces = [one for one in held if not getattr(one, "_zero_padding", False)]
        return _checked(pieces, number, size, optimizer)

    return read


def _checked(pieces: Sequence[torch.Tensor], number: int, size: int, optimizer: Any) -> torch.Tensor | None:
    if number >= len(pieces) or pieces[number].numel() < size:
        raise NotSeen(f"{_version()}: not seen, because the gradients of a partition are not those of its parameters")
    return _unscaled(pieces[number].reshape(-1)[:size], optimizer)


def _flat(name: str, total: int, start: int, size: int, device: torch.device, read: Any) -> StandIn:
    return StandIn(name, (total,), (size,), (start if size else 0,), device, read, _along_data(gradsync.Shard(0)))


def _zero_3(optimizer: Any, names: Mapping[int, str]) -> Stepping:
    stand_ins: list[StandIn] = []
    stands_for: dict[int, Sequence[StandIn]] = {}
    rank = dist.get_rank(optimizer.dp_process_group)
    for i, group in enumerate(optimizer.fp16_groups):
        own: list[StandIn] = []
        for number, parameter in enumerate(group):
            piece = parameter.ds_tensor.ds_numel
            start = min(rank * piece, parameter.ds_numel)
            size = min(piece, parameter.ds_numel - start)
            read = _piece_of_3(optimizer, i, number, size)
            own.append(_flat(names[id(parameter)], parameter.ds_numel, start, size, parameter.device, read))
        stand_ins += own
        stands_for[id(optimizer.fp32_partitioned_groups_flat[i])] = own
    return Stepping(stand_ins, stands_for)


def _piece_of_3(optimizer: Any, group: int, number: int, size: int) -> Callable[[], torch.Tensor | None]:
    def read() -> torch.Tensor | None:
        held = optimizer.averaged_gradients.get(group)
        return None if held is None else _checked(held, number, size, optimizer)

    return read


def _bf16(optimizer: Any, names: Mapping[int, str]) -> Stepping:
    def reader(i: int, k: int) -> Callable[[], torch.Tensor | None]:
        return lambda: optimizer.fp32_groups_gradients[i][k] if optimizer.fp32_groups_has_gradients[i][k] else None

    held = [
        [_whole(names[id(one)], one, reader(i, k)) for k, one in enumerate(group)]
        for i, group in enumerate(optimizer.bf16_groups)
    ]
    return _stepping(held, [[one] for one in optimizer.fp32_groups_flat_partition])


def _fp16(optimizer: Any, names: Mapping[int, str]) -> Stepping:
    def reader(parameter: torch.nn.Parameter) -> Callable[[], torch.Tensor | None]:
        return lambda: _unscaled(parameter.grad, optimizer)

    held = [[_whole(names[id(one)], one, reader(one)) for one in group] for group in optimizer.fp16_groups]
    flat = getattr(optimizer, "fp32_groups_flat", None)
    return _stepping(held, optimizer.fp32_groups if flat is None else [[one] for one in flat])


def _whole(name: str, parameter: torch.nn.Parameter, read: Any) -> StandIn:
    shape = tuple(parameter.shape)
    return StandIn(name, shape, shape, None, parameter.device, read, _along_data(gradsync.Replicate()))


def _stepping(held: Sequence[Sequence[StandIn]], masters: Sequence[Sequence[torch.Tensor]]) -> Stepping:
    """`masters` are the float32 weights of each group: one tensor for all of it, or one for each parameter."""
    stands_for: dict[int, Sequence[StandIn]] = {}
    for own, stepped in zip(held, masters, strict=True):
        if len(stepped) == len(own):
            stands_for |= {id(one): [stand_in] for one, stand_in in zip(stepped, own, strict=True)}
        else:
            stands_for |= {id(one): own for one in stepped}
    return Stepping([one for own in held for one in own], stands_for)


_READERS: Mapping[str, Callable[[Any, Mapping[int, str]], Stepping]] = {
    "DeepSpeedZeroOptimizer": _zero,
    "DeepSpeedZeroOptimizer_Stage3": _zero_3,
    "BF16_Optimizer": _bf16,
    "FP16_Optimizer": _fp16,
    "FP16_UnfusedOptimizer": _fp16,
}
