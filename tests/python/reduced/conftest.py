"""Makes tests/reference importable, and bounds Hypothesis: the same examples on every machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

sys.path.insert(0, str(Path(__file__).parents[2]))

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
# Shrinking a world takes longer than the deadline of a test: `reduced-long` does it.
PHASES = [Phase.explicit, Phase.generate]
settings.register_profile(
    "reduced",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    phases=PHASES,
    suppress_health_check=SLOW,
)
settings.register_profile("reduced-long", settings(deadline=None, max_examples=1000, suppress_health_check=SLOW))
settings.load_profile(os.environ.get("GRADSYNC_HYPOTHESIS", "reduced"))
