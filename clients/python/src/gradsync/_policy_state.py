"""The state of clipping policies in a checkpoint: a dict of fixed keys, whose values only the daemon understands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .errors import UsageError

__all__ = ["STATE_VERSION", "check_state"]

STATE_VERSION: Final = 1
_KEYS = {"version", "policies"}


def check_state(state: Mapping[str, Any]) -> str:
    """The policies' part of what `state_dict()` gave; "" where nothing was remembered.

    Raises:
        UsageError: it is something else, or of a later release.
    """
    if not isinstance(state, Mapping) or set(state) != _KEYS:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise UsageError(f"load_state_dict() of {found}: give what state_dict() returned, with {sorted(_KEYS)}")
    if state["version"] != STATE_VERSION:
        raise UsageError(f"the state has version {state['version']!r}, this client reads version {STATE_VERSION}")
    policies = state["policies"]
    if not isinstance(policies, str):
        raise UsageError(f"the state's policies are a {type(policies).__name__}, a str of hex digits is expected")
    return policies
