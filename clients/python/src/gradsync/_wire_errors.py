"""Errors of the daemon's kinds: from what came over the wire, and those that this client finds by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import RpcError

__all__ = ["error_class", "error_from_wire", "local_error"]

_BY_KIND: dict[str, type[RpcError]] = {cls.KIND: cls for cls in RpcError.__subclasses__()}


def error_class(kind: str) -> type[RpcError]:
    """The class for a kind; `RpcError` itself for one that is newer than this client."""
    return _BY_KIND.get(kind, RpcError)


def error_from_wire(error: Mapping[str, Any]) -> RpcError:
    """The exception for the `error` member of a reply."""
    data = error.get("data")
    data = data if isinstance(data, Mapping) else {}
    return error_class(str(data.get("kind", "")))(
        int(error.get("code", 0)), str(error.get("message", "the daemon gave no message")), data
    )


def local_error(cls: type[RpcError], message: str, hint: str, **data: Any) -> RpcError:
    """An error of a daemon's kind that this client found by itself."""
    return cls(0, message, {"kind": cls.KIND, "hint": hint, "retryable": False, **data})
