"""Notices that a parameter or a submodule was added to a module, exchanged or removed after attach."""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Iterator
from itertools import chain
from types import GeneratorType
from typing import Any

from torch import nn

_TABLES = operator.attrgetter("_modules", "_parameters")


class ModuleTree:
    """The objects of a module tree as they were when last looked at."""

    def __init__(self, model: nn.Module) -> None:
        # Weak: the table of attached modules must not keep its own keys alive.
        self._model = weakref.ref(model)
        self.remember()

    def remember(self) -> None:
        """Remembers what the module holds now, to compare with it later."""
        model = self._model()
        self._below = [] if model is None else list(model.modules())[1:]
        self._tables: list[dict[str, Any]] = list(self._own_tables())
        self._filled = [table for table in self._tables if table]
        self._objects = list(self._items())  # kept alive, so that no id is used again
        self._ids = list(map(id, self._objects))

    def is_of(self, model: nn.Module) -> bool:
        return self._model() is model

    def changed(self) -> bool:
        # This runs in every step, so it has no loop in Python. Most tables are empty: an entry in one of them
        # changes the sum, or was taken out of a filled one.
        if self._model() is not None and not all(map(operator.is_, self._own_tables(), self._tables)):
            return True  # This notices that a whole table was exchanged.
        return sum(map(len, self._tables)) != len(self._ids) or list(map(id, self._items())) != self._ids

    def _own_tables(self) -> Iterator[dict[str, Any]]:
        model = self._model()
        return chain.from_iterable(map(_TABLES, chain(() if model is None else (model,), self._below)))

    def _items(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._filled))

    def parameters(self) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
        """The parameters of the module as it is now; none when the module no longer exists."""
        model = self._model()
        return iter(()) if model is None else walk(model)


def model_of_walk(parameters: object) -> nn.Module | None:
    """The model, where these are its `parameters()` before the first was taken; else None.

    What that generator gives follows from the module tree, which is looked at in a tenth of the time.
    """
    if not isinstance(parameters, GeneratorType) or parameters.gi_code is not nn.Module.parameters.__code__:
        return None
    if inspect.getgeneratorstate(parameters) != inspect.GEN_CREATED:
        return None
    arguments = inspect.getgeneratorlocals(parameters)
    model = arguments["self"]
    plain = arguments["recurse"] is True and type(model).named_parameters is nn.Module.named_parameters
    return model if plain else None


def clean_name(name: str) -> str:
    """torch.compile wraps modules: the wrapper is no part of a parameter's name."""
    return name.replace("_orig_mod.", "")


def walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """(name, owner, key, parameter) in the order of `named_parameters()`, every name of a tied one included."""
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield clean_name(f"{prefix}.{key}" if prefix else key), module, key, parameter
