"""Clipping state where nothing is clipped: kept as it was loaded, for the mode that goes on with it."""

from __future__ import annotations

from typing import Any

from gradsync._policy_state import STATE_VERSION, check_state

__all__ = ["KeptState"]


class KeptState:
    """`state_dict` and `load_state_dict` of the modes `off` and `observe`."""

    _state: dict[str, Any] = {"version": STATE_VERSION, "policies": ""}  # noqa: RUF012  never changed, only replaced

    def state_dict(self) -> dict[str, Any]:
        """What was loaded: a run in this mode loses nothing that another one saved."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it; nothing is clipped here.

        Raises:
            UsageError: it is no state.
        """
        check_state(state)
        self._state = dict(state)
