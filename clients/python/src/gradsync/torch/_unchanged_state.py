"""The state of clipping policies in modes that do not clip: it is saved as it was loaded."""

from __future__ import annotations

from typing import Any

from gradsync._policy_state import STATE_VERSION, check_state

__all__ = ["UnchangedState"]


class UnchangedState:
    """`state_dict` and `load_state_dict` of the modes `off` and `observe`."""

    _state: dict[str, Any] = {"version": STATE_VERSION, "policies": ""}  # noqa: RUF012  never changed, only replaced

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that was loaded, so that a run in this mode loses nothing."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps the state, which this mode does not use.

        Raises:
            UsageError: `state` is not the state of clipping policies.
        """
        check_state(state)
        self._state = dict(state)
