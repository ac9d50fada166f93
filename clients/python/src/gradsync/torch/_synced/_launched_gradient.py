"""A DTensor gradient whose bucket was launched: whatever would write to it fails at the write.

Torch's versions do not tell of `_foreach` writes to DTensors, nor of those through `.data`. But an operation on a class
derived from DTensor is dispatched through that class. So the gradient's own class is exchanged: references that a
script kept are guarded too, and nothing is slower before the launch. What is left are writes to the plain memory
(`_local_tensor.data`, `numpy()`), as for plain gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.distributed.tensor import DTensor

__all__ = ["LaunchedGradient", "refuse_writes"]

Late = Callable[[], Exception | None]


class LaunchedGradient(DTensor):
    """`late` says what is wrong with a write now; None when the step of the launch is over."""

    late: Late

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        for one in _written(func._schema, args, kwargs):
            error = one.late() if isinstance(one, cls) else None
            if error is not None:
                raise error
        dispatch: Any = DTensor.__torch_dispatch__
        found = dispatch(func, [DTensor if kind is cls else kind for kind in types], args, kwargs)
        source = next((one for one in _flat(args) if isinstance(one, cls)), None)
        if source is not None:
            memory = _memory(source)
            for one in _flat([found]):
                if type(one) is DTensor and _memory(one) == memory:  # a view of it, or `.data`
                    refuse_writes(one, source.late)
        return found


def refuse_writes(gradient: Any, late: Late) -> None:
    """Guards a gradient from here on."""
    gradient.late = late
    gradient.__class__ = LaunchedGradient


def _written(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _flat([args[place] if place < len(args) else kwargs.get(argument.name)])


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _memory(gradient: Any) -> int:
    return int(gradient._local_tensor.untyped_storage().data_ptr())
