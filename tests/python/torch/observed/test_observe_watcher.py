"""The parts of `gradsync observe` in one process; tests/integration/training/test_observe.py has the command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gradsync._launch._resolve import Launch
from gradsync._observe._summary import Summary, as_json, as_text
from gradsync._observe._tally import Difference, Tally, TallyFile, read_tallies
from gradsync.torch._observed import _norms
from gradsync.torch._observed._norms import PartNorms, StoredNorms, norms_of
from gradsync.torch._observed._watcher import Watcher


def watcher(folder: Path) -> Watcher:
    return Watcher({"folder": str(folder), "jsonl": None, "patience_s": 60.0})


def test_a_step_of_a_framework_is_passed_on_and_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = watcher(tmp_path)
    assert [one.around("step", lambda a, b: a + b, (number,), {"b": 1}) for number in range(3)] == [1, 2, 3]
    assert capfd.readouterr().err.count("that was made after the first step are not observed") == 1
    assert len(read_tallies(tmp_path)[0].notes) == 1


def test_an_error_of_the_observation_never_reaches_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = watcher(tmp_path)

    def fails(_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(one, "_before", fails)
    assert one.around("clip", lambda parameters, max_norm: 7.0, ([], 1.0), {}) == 7.0
    assert one.stands_aside
    assert "nothing is observed from now on: planted" in read_tallies(tmp_path)[0].notes[0]


def test_what_the_script_raises_is_raised(tmp_path: Path) -> None:
    def raises(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watcher(tmp_path).around("clip", raises, ([],), {})


def test_parts_of_a_norm_are_summed_over_ranks(tmp_path: Path) -> None:
    ranks = [PartNorms(tmp_path, "job@host/1", rank) for rank in range(3)]
    assert ranks[0].whole(0, [0, 1], 2.0) is None  # nobody has written
    for step in (0, 200):
        ranks[0].put(step, 3.0)
        ranks[1].put(step, 4.0)
        assert ranks[0].whole(step, [0, 1], 2.0) == ranks[1].whole(step, [0, 1], 2.0) == 5.0
        assert ranks[1].whole(step, [0, 1], math.inf) == 4.0
        assert ranks[0].whole(step, [0, 1, 2], 2.0) is None
    assert ranks[0].whole(200 + 64, [0, 1], 2.0) is None  # in the same slot, and of another step
    ranks[0].put(201, math.nan)
    ranks[1].put(201, 1.0)
    assert math.isnan(ranks[1].whole(201, [0, 1], 2.0) or 0.0)


def over_nodes(rank: int, ranks: int = 4) -> StoredNorms:
    launch = Launch(job="job", rank=rank, world_size=ranks, restart_count=0, local_world_size=2, coordinator=None)
    found = norms_of(Path("/nonexistent"), launch)
    assert isinstance(found, StoredNorms)
    return found


def test_parts_of_a_norm_are_summed_over_nodes_by_the_first_rank_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(_norms, "store_of_group", lambda: store)
    ranks = [over_nodes(rank) for rank in range(4)]
    assert ranks[0].whole(0, [0, 1, 2, 3], 2.0) is None  # nobody has written
    for step in (0, 200):
        for rank in ranks:
            rank.put(step, 1.0)
        found = [rank.whole(step, [0, 1, 2, 3], 2.0) for rank in ranks]
        assert found == [2.0, None, 2.0, None]
        assert [rank.whole(step, [1, 3], 2.0) for rank in ranks[1::2]] == [2**0.5, 2**0.5]
    ranks[0].put(201, math.nan)
    assert ranks[2].whole(201, [0, 1, 2, 3], 2.0) is None  # the other parts are of another step
    for rank in ranks[1:]:
        rank.put(201, 1.0)
    assert math.isnan(ranks[2].whole(201, [0, 1, 2, 3], 2.0) or 0.0)


def test_of_many_ranks_the_first_alone_reads_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(_norms, "store_of_group", lambda: store)
    ranks = [over_nodes(rank, 100) for rank in range(100)]
    for rank in ranks:
        rank.put(0, 0.5)
    assert [rank.whole(0, range(100), 2.0) for rank in ranks[:3]] == [5.0, None, None]


def test_without_a_store_or_with_one_that_is_gone_no_norm_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Any:
        raise RuntimeError("Connection reset by peer")

    for store in (lambda: None, gone):
        monkeypatch.setattr(_norms, "store_of_group", store)
        norms = over_nodes(0)
        norms.put(0, 1.0)
        assert norms.whole(0, [0, 1, 2, 3], 2.0) is None


def test_a_tally_is_whole_after_each_write_also_a_shorter_one(tmp_path: Path) -> None:
    tally = Tally(0, 2, notes=["a long note"])
    file = TallyFile(tmp_path, tally)
    file.write()
    tally.notes = []
    tally.saw("nonfinite", 3, "here")
    tally.saw("nonfinite", 5, "")
    tally.largest = Difference(3, 1.0, 2.0, -0.5, 1e-5)
    file.write()
    (read,) = read_tallies(tmp_path)
    assert read == tally
    assert (read.seen["nonfinite"].count, read.seen["nonfinite"].first, read.seen["nonfinite"].last) == (2, 3, 5)


def test_the_summary_takes_what_was_seen_first_and_the_rank_that_is_furthest_off() -> None:
    ranks = [Tally(rank, 2, tensors=4, observed=10, compared=10, last=9) for rank in range(2)]
    ranks[0].saw("difference", 7, "of rank 0")
    ranks[1].saw("difference", 6, "of rank 1")
    ranks[0].saw("absent", 0, "often right")
    ranks[1].largest = Difference(6, 3.0, 2.0, 0.5, 1e-5)
    summary = Summary(ranks)
    assert (summary.wrong, summary.exit_code) == (["difference"], 1)
    assert as_json(summary)["findings"]["difference"]["text"] == "of rank 1"
    assert as_json(summary)["largest_difference"]["rank"] == 1
    text = as_text(summary)
    assert "+50 % in step 6 on rank 1" in text
    assert "beyond the 0.001 %" in text
    assert "gradsync audit" in text.splitlines()[-1]
    ranks[1].seen, ranks[0].seen, ranks[1].largest = {}, {"absent": ranks[0].seen["absent"]}, None
    assert summary.exit_code == 0
