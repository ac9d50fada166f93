"""Early launches of DTensors in real processes: FSDP2 × replicas and TP, with and without SP, on four ranks.

Every training is done with overlap and without, and its gradients are compared to the bit.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from live_world import DEADLINE_S, Live, run_live
from overlap_rank import STEPS, WRITER, WRITTEN

import gradsync

# The first test waits for the ranks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(DEADLINE_S)]

ALWAYS_USED = 14  #: of 17 tensors, one bucket each
LEARNT = 4  #: steps until a bucket may go: the first, and three trials


@pytest.fixture(scope="module", params=[100, 2], ids=["checked seldom", "every other step checked"])
def overlapped(request: pytest.FixtureRequest, daemon_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Live:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", daemon_binary)
        patch.setenv("GRADSYNC_ENGINE_FIRST_BUCKET_BYTES", "1")
        patch.setenv("GRADSYNC_ENGINE_BUCKET_BYTES", "1")
        patch.setenv("GRADSYNC_ENGINE_CHECK_EVERY", str(request.param))
        with gradsync.connect(spawn=True, timeout=60) as client:
            return run_live("overlap_rank.py", 4, client.address, Path(tmp_path_factory.mktemp("overlap")))


TRAINED = ["fsdp2", "fsdp2_2", "tp", "tp_sp", "tp_sp_2", "checkpointed"]


@pytest.mark.parametrize("case", [*TRAINED, "written"])
def test_gradients_have_the_bits_that_they_have_without_overlap(overlapped: Live, case: str) -> None:
    for found in overlapped[case]:
        assert len(found["with"]["digests"]) == STEPS
        assert found["with"]["digests"] == found["without"]["digests"]
        assert found["without"]["early"] == [0] * STEPS
        assert found["with"]["divergence"] == 0  # copies are compared before they are reduced


@pytest.mark.parametrize("case", TRAINED)
def test_buckets_of_dtensors_go_early_when_they_were_tried(overlapped: Live, case: str) -> None:
    for found in overlapped[case]:
        early = found["with"]["early"]
        plain = early[1] - early[0]  # buckets without DTensors go from the second step on
        assert early[LEARNT - 1] == plain * (LEARNT - 1)
        assert early[-1] - early[LEARNT - 1] > plain * (STEPS - LEARNT)
        assert max(now - before for before, now in itertools.pairwise(early)) == ALWAYS_USED
        assert found["with"]["failed"] == ""


def test_a_hook_that_writes_is_named_and_ends_overlap_on_all_ranks(overlapped: Live) -> None:
    for rank, found in enumerate(overlapped["written"]):
        failed = found["with"]["failed"]
        named = f"'{WRITTEN}' was changed after its last hook by __main__.double, registered after attach()"
        assert failed == (named if rank == WRITER else "")
        early = found["with"]["early"]
        assert early[-1] == (early[1] - early[0]) * (STEPS - 1)
