"""Makes tests/reference importable, with the bounds that its other users have for Hypothesis."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "audit",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=SLOW,
)
settings.register_profile("audit-long", settings(deadline=None, max_examples=1000, suppress_health_check=SLOW))
settings.load_profile(os.environ.get("GRADSYNC_HYPOTHESIS", "reduced").replace("reduced", "audit"))
