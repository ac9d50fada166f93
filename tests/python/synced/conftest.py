"""Makes tests/reference and the harness of tests/python/reduced importable, and bounds Hypothesis as there.

One daemon for each file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "reduced")]

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "synced",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=SLOW,
)
settings.register_profile("synced-long", settings(deadline=None, max_examples=1000, suppress_health_check=SLOW))
wanted = os.environ.get("GRADSYNC_HYPOTHESIS", "synced").replace("reduced", "synced")
settings.load_profile(wanted)


@pytest.fixture(scope="module")
def product() -> Iterator[Any]:
    from product import running
    from real_daemon import binary

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", binary())
        with running() as product:
            yield product
