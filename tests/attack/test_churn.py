"""Trainers that come and go leave nothing behind, also those that are killed."""

from __future__ import annotations

import pytest
from churn import held, lives
from hostile import Daemon
from victim import SECONDS, goes_on_for

KEPT_MIB = 4  # 0.05 MiB in 1,000 lives were seen; the rest is what an allocator may do. ASan keeps what was freed


@pytest.mark.long
@pytest.mark.release
@pytest.mark.timeout(900 + 10 * int(SECONDS))
def test_resident_memory_is_flat_over_lives() -> None:
    with Daemon() as daemon:
        lives(daemon, range(200))
        before = held(daemon)["resident"]
        for part in goes_on_for(3):
            lives(daemon, range(200 * (part + 1), 200 * (part + 2)))
        assert held(daemon)["resident"] - before < KEPT_MIB
