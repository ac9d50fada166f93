"""JSON as the protocol wants it: no NaN or infinity, and integers beyond 2^53 as decimal strings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .errors import ProtocolError

__all__ = ["decode_int", "decode_number", "dump", "encode_number", "load", "notification", "request"]

_SAFE_INTEGER = 2**53
_dump = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode_number(value: float) -> float | str:
    """A number as it travels: `"NaN"`, `"Infinity"`, `"-Infinity"`, or itself."""
    value = float(value)
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def decode_number(value: Any) -> float:
    """A number as it came; `float` also reads the three strings and decimal integers."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ProtocolError(f"the daemon sent {value!r} where a number belongs; are both of the same release?")
    try:
        return float(value)
    except ValueError:
        raise ProtocolError(f"the daemon sent {value!r} where a number belongs; same release on both sides?") from None


def decode_int(value: Any) -> int:
    """An integer as it came: a JSON integer, or a decimal string above 2^53."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ProtocolError(f"the daemon sent {value!r} where an integer belongs; are both of the same release?")
    try:
        return int(value)
    except ValueError:
        raise ProtocolError(
            f"the daemon sent {value!r} where an integer belongs; same release on both sides?"
        ) from None


def plain(value: Any) -> Any:
    """`value` with every number in its wire form, for parameters that a caller put together."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if -_SAFE_INTEGER <= value <= _SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"{value!r} has no JSON form; give numbers, texts, lists and dicts")


def dump(value: Any) -> str:
    """Compact JSON."""
    return _dump(value)


def load(text: str | bytes) -> Any:
    """Reads JSON.

    Raises:
        ProtocolError: the text is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"the daemon sent text that is not JSON ({error}); is something else listening?") from None


def request(request_id: int, method: str, params: Mapping[str, Any]) -> str:
    """A request as text."""
    return _dump({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def notification(method: str, params: Mapping[str, Any]) -> str:
    """A notification as text."""
    return _dump({"jsonrpc": "2.0", "method": method, "params": params})
