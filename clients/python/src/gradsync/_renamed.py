"""Arguments that have a new name: the old one still works, and says so."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .errors import UsageError

__all__ = ["renamed"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def renamed(**new_names: str) -> Callable[[_Function], _Function]:
    """Lets keyword arguments of a function be given by their old names: `@renamed(old="new")`."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for old, new in new_names.items():
                if old not in options:
                    continue
                name = f"{function.__name__}({old}=…)"
                if new in options:
                    raise UsageError(f"{name} is the old name of {new}=, which is given too; give {new}= alone")
                warnings.warn(f"{name} is now called {new}=", DeprecationWarning, stacklevel=2)
                options[new] = options.pop(old)
            return function(*args, **options)

        return cast(_Function, call)

    return decorate
