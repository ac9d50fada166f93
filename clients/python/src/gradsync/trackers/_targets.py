"""Which tracker a name or an object means."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gradsync.errors import UsageError

from ._feed import Target
from ._lines import LinesTarget
from ._mlflow import MlflowTarget
from ._objects import CallTarget, call_of
from ._tensorboard import TensorBoardTarget
from ._wandb import WandbTarget

__all__ = ["Make", "target_of"]

Make = Callable[[], Target]
_NAMES = "'mlflow', 'mlflow:RUN_ID', 'tensorboard', 'tensorboard:FOLDER', 'wandb' or a path that ends in .jsonl"


def target_of(given: object, first_step: int | None) -> Make:
    """What makes the target of `given`, on the rank that logs; the others only check it.

    Raises:
        UsageError: it is no tracker, or one whose package is not installed.
    """
    if isinstance(given, (str, os.PathLike)):
        return _by_name(os.fspath(given), first_step)
    module = given.__name__ if isinstance(given, ModuleType) else ""
    if module in ("mlflow", "wandb"):
        return _by_name(module, first_step)
    if type(given).__module__.split(".")[0] == "wandb" and hasattr(given, "define_metric"):
        return lambda: WandbTarget(given)
    call = call_of(given)
    name = f"the tracker {getattr(given, '__qualname__', type(given).__name__)}"
    return lambda: CallTarget(call, name)


def _by_name(text: Any, first_step: int | None) -> Make:
    if not isinstance(text, str):
        raise UsageError(f"log_to={text!r}: give {_NAMES}")
    name, colon, rest = text.partition(":")
    if text.endswith(".jsonl"):
        return lambda: LinesTarget(text)
    if name not in ("mlflow", "tensorboard", "wandb") or (colon and not rest) or (name == "wandb" and colon):
        raise UsageError(f"log_to={text!r}: give {_NAMES}")
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        raise UsageError(f"log_to={text!r}: {name} is not installed here; pip install {name}, or gradsync[{name}]")
    if name == "mlflow":
        return lambda: MlflowTarget(rest or None)
    if name == "tensorboard":
        return lambda: TensorBoardTarget(rest or None, first_step)
    return WandbTarget
