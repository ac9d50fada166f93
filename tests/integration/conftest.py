"""What all tests of real daemons share."""

from __future__ import annotations

import pytest
from daemon import DEADLINE_S

from gradsync._session import _rank_session
from gradsync._step import _declaring
from gradsync._transport import _channel, _connection


@pytest.fixture(autouse=True)
def time_for_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in the process of the test wait for a daemon that answers, however late."""
    for module, name in (
        (_rank_session, "PATIENCE_S"),
        (_channel, "_GRACE_S"),
        (_connection, "_HANDSHAKE_S"),
        (_connection, "_CLOSE_S"),
        (_declaring, "_SHORTEST_S"),
    ):
        monkeypatch.setattr(module, name, DEADLINE_S / 2)
