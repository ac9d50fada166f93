"""What ranks write, what keeps an audit from a verdict, and how a verdict reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted import Logical, Planted, replicate, shard

import gradsync
from gradsync._audit import _examine, _replay
from gradsync._audit._causes import Cause
from gradsync._audit._ending import after_failure
from gradsync._audit._examine import all_have_ended, check_new, complete, examine, has_ended
from gradsync._audit._findings import DONE, Call, RankWriter, Step, rank_path, read_ranks
from gradsync._audit._node import nodes_of
from gradsync._audit._table import as_json, as_text
from gradsync._audit._verdict import Line, Verdict
from gradsync._step._row import Row

TENSOR = gradsync.Tensor(
    "w",
    (4, 6),
    local_shape=(2, 3),
    mesh="m",
    placements={
        ("a", "b"): gradsync.Shard(0),
        "tp": gradsync.Shard(0),
        "pp": gradsync.Only(1),
        "dp": gradsync.Replicate(),
    },
    split_order=("tp", "a", "b"),
    tied="t",
    weight_fingerprint="weights=1",
)
STEP = Step(
    [Row(1.5, 1e-20, 2.0, 3.0, 1, 1, 2**64 - 1), None],
    [math.inf, None],
    [Call("clip", 2.0, math.nan, "bfloat16", (0,), (0, 2), 3), Call("total", math.inf, None)],
)


def written(folder: Path, rank: int = 0, world_size: int = 1, steps: int = 1, p: float = 2.0) -> RankWriter:
    rank_path(folder, rank).unlink(missing_ok=True)
    writer = RankWriter(folder, rank)
    writer.head(rank, world_size, {"m": dict.fromkeys(("pp", "a", "b", "tp", "dp"), 1)}, [TENSOR], p, ["a note"])
    for _ in range(steps):
        writer.step(STEP)
    return writer


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written(tmp_path).done()
    (found,) = read_ranks(tmp_path).values()
    assert list(found.tensors) == [TENSOR]
    assert found.notes == ["a note"]
    assert repr(found.steps[0].rows) == repr(STEP.rows)
    assert found.steps[0].own == STEP.own
    assert repr(found.steps[0].calls) == repr(STEP.calls)
    assert found.done
    assert found.failed is None


def test_a_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, steps=2).done()
    path = rank_path(tmp_path, 0)
    path.write_text(path.read_text()[: -len(DONE) - 5])
    (found,) = read_ranks(tmp_path).values()
    assert len(found.steps) == 1
    assert not found.done


def test_complete_is_when_every_rank_is_done(tmp_path: Path) -> None:
    assert not complete(tmp_path)
    written(tmp_path, 0, 2).done()
    assert not complete(tmp_path)
    second = written(tmp_path, 1, 2)
    assert not complete(tmp_path)
    second.done()
    assert complete(tmp_path)


def test_ranks_that_all_failed_are_complete(tmp_path: Path) -> None:
    for rank in range(2):
        writer = RankWriter(tmp_path, rank)
        writer.failed("ModuleRefused: 'w': its gradient is complex", 2)
        assert not complete(tmp_path)
        writer.done()
    assert complete(tmp_path)


def test_why_there_is_no_verdict(tmp_path: Path) -> None:
    assert "no process called clip_grad_norm_" in str(examine(tmp_path, None).reason)
    written(tmp_path, 0, 3).done()
    assert "ranks 1, 2 of 3 never called" in str(examine(tmp_path, None).reason)
    written(tmp_path, 1, 3, steps=0).done()
    written(tmp_path, 2, 3).done()
    assert "no step was completed" in str(examine(tmp_path, None).reason)
    written(tmp_path, 1, 3, p=1.0).done()
    verdict = examine(tmp_path, None)
    assert "different orders: 1.0, 2.0" in str(verdict.reason)
    assert verdict.advice == "give the clip calls of all ranks one norm_type"
    rank_path(tmp_path, 1).unlink()
    writer = RankWriter(tmp_path, 1)
    with pytest.raises(FileExistsError):
        RankWriter(tmp_path, 1)
    writer.failed("ModuleRefused: 'w': its mesh is another", 3)
    writer.done()
    verdict = examine(tmp_path, None)
    assert "rank 1: ModuleRefused" in str(verdict.reason)
    assert "gradsync.torch.audit(" in verdict.advice
    assert verdict.exit_code == 2
    rank_path(tmp_path, 1).unlink()
    writer = RankWriter(tmp_path, 1)
    writer.failed("NotSeen: a framework of tomorrow", 3)
    writer.done()
    verdict = examine(tmp_path, None)
    assert str(verdict.reason).startswith("1 rank cannot be audited: rank 1: NotSeen")
    assert "gradsync.torch.observe(norm)" in verdict.advice


def test_findings_of_steps_are_said_once_and_not_all(tmp_path: Path) -> None:
    differing = [SimpleNamespace(tensor=f"w{number}", ranks=[0, 1]) for number in range(9)]
    reports: Any = [SimpleNamespace(divergence=differing, missing=differing[:1]) for _ in range(3)]
    said, differ = _replay._findings(reports)
    assert differ
    assert len(said) == 7
    assert "ranks 0, 1 differ (first in step 0)" in said[0]
    assert said[5] == "and 4 more tensors that differ"
    assert said[6].startswith("'w0' has no gradient on ranks 0, 1: counted as 0 -> ")


def test_a_rank_that_stopped_early_is_said_with_what_to_do(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    tensor = gradsync.Tensor("w", (2,), local_shape=(2,), mesh="m", placements={"dp": gradsync.Replicate()})
    writer.head(0, 2, {"m": {"dp": 2}}, [tensor], 2.0, [], 1)  # a node of one rank, which needs no daemon
    writer.step(Step([Row(4.0, 0.0, 2.0, 2.0, 0, 0, 1)], [2.0], [Call("clip", 2.0, 2.0)]))
    writer.failed("GradientRefused: 'w': its gradient is sparse", 2)
    writer.done()
    (said,) = [finding for finding in examine(tmp_path, None).findings if "stopped early" in finding]
    assert said == (
        "rank 0 stopped early: GradientRefused: 'w': its gradient is sparse; the steps before it are compared -> mend "
        "what it says, then audit again"
    )


def written_on(folder: Path, rank: int, node: str) -> RankWriter:
    """A rank of four on two nodes that has made one step."""
    writer = RankWriter(folder, rank)
    tensor = gradsync.Tensor("w", (2,), local_shape=(2,), mesh="m", placements={"dp": gradsync.Replicate()})
    writer.head(rank, 4, {"m": {"dp": 4}}, [tensor], 2.0, [], 2, node)
    writer.step(Step([Row(4.0, 0.0, 2.0, 2.0, 0, 0, 1)], [2.0], [Call("clip", 2.0, 2.0)]))
    return writer


def test_a_folder_of_all_nodes_is_complete_when_every_rank_of_all_is_done(tmp_path: Path) -> None:
    for rank in range(2):
        written_on(tmp_path, rank, "a").done()
    assert complete(tmp_path)
    assert not complete(tmp_path, shared=True)
    for rank in range(2, 4):
        written_on(tmp_path, rank, "b").done()
    assert complete(tmp_path, shared=True)
    assert complete(tmp_path), "files that were copied together are those of all nodes"


def test_ranks_of_other_nodes_that_wrote_nothing_are_named_with_their_node(tmp_path: Path) -> None:
    for rank, node in ((0, "a"), (1, "a"), (2, "b")):
        written_on(tmp_path, rank, node).done()
    verdict = examine(tmp_path, None, shared=True)
    assert verdict.reason == "ranks 3 (node b) of 4 never called a clip function of torch"
    assert verdict.exit_code == 2


def test_a_folder_that_is_not_that_of_all_nodes_says_so(tmp_path: Path) -> None:
    for rank in range(2):
        written_on(tmp_path, rank, "a").done()
    verdict = examine(tmp_path, None, shared=True)
    assert verdict.reason == "nothing of ranks 2, 3 of 4 came into this folder"
    assert "the same --folder" in verdict.advice


def test_the_commands_of_all_nodes_know_when_none_writes_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not all_have_ended(tmp_path)
    written_on(tmp_path, 0, "a").done()
    for node, ended in (("a", False), ("b", True)):
        monkeypatch.setenv("GRADSYNC_PEER_NODE", node)
        has_ended(tmp_path)
        assert all_have_ended(tmp_path) == ended


@pytest.mark.parametrize("name", ["rank-3.jsonl", "ended-a-7"])
def test_a_folder_of_an_earlier_run_is_refused(tmp_path: Path, name: str) -> None:
    check_new(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(gradsync.UsageError, match="the files of an earlier run; name a folder that is new or empty"):
        check_new(tmp_path)


def test_which_ranks_are_on_which_node_is_said_where_there_are_several(tmp_path: Path) -> None:
    for rank in range(4):
        written_on(tmp_path, rank, "ab"[rank // 2]).done()
    assert nodes_of(read_ranks(tmp_path)) == ["node a has ranks 0, 1; node b has ranks 2, 3"]
    assert nodes_of({rank: found for rank, found in read_ranks(tmp_path).items() if rank < 2}) == []


@pytest.mark.long
def test_no_daemon_is_a_reason(tmp_path: Path) -> None:
    written(tmp_path).done()
    verdict = examine(tmp_path, str(tmp_path / "none.sock"))
    assert "no daemon gave the exact norm" in str(verdict.reason)
    assert "gradsyncd serve" in verdict.advice
    assert _examine.LINE in _examine._ADVICE


@pytest.fixture
def verdict() -> Verdict:
    cause = Cause("double_count", "counted 3 times: " + 40 * "long " + "text", "leave 'dp' out", ("over ep",), "dp")
    lines = [
        Line("whole model", 3, "differs", 2.0, (3.0, 4.0), 1.0, 1, (cause, Cause("unknown", "nothing"))),
        Line("over ep", 3, "differs", 2.0, (4.0,), 1.0, 1, (cause,), True, True),
        Line("part: w", 1, "agrees", math.nan, (math.inf,), None),
    ]
    return Verdict(5, 2, math.inf, 2e-5, "from dtype", lines, ("ranks differ",))


def test_the_table(verdict: Verdict) -> None:
    text = as_text(verdict)
    assert "5 steps, 2 ranks, order inf" in text
    assert "3…4" in text
    assert "4 (implied)" in text
    assert "+100.00 %" in text
    assert "2 causes predict this; these steps cannot tell them apart" in text
    assert "double_count" in text
    assert "leave 'dp' out" in text
    assert "ranks differ" in text
    assert "within 2e-05 (from dtype)" in text
    assert max(map(len, text.splitlines())) <= 120
    assert verdict.exit_code == 1


def test_json_carries_what_json_cannot(verdict: Verdict) -> None:
    found = json.loads(json.dumps(as_json(verdict), allow_nan=False))
    assert found["norm_type"] == "Infinity"
    assert found["lines"][2]["ours"] == "NaN"
    assert found["lines"][0]["theirs"] == [3.0, 4.0]
    assert found["lines"][0]["causes"][0]["groups"] == ["over ep"]
    assert found["exit_code"] == 1


def test_nothing_audited_reads_as_such() -> None:
    verdict = Verdict(reason="because", advice="do this")
    assert as_text(verdict).splitlines() == ["gradsync audit: nothing could be audited: because", "  -> do this"]
    assert as_json(verdict)["reason"] == "because"
    assert verdict.exit_code == 2


def test_a_right_world_reads_well() -> None:
    tensors = [Logical("w", (4, 3), (shard(0, "ep"), replicate("dp")))]
    planted = Planted({"dense": {"dp": 2, "ep": 2}}, tensors)
    text = as_text(planted.judge(lambda w, s, r: w.root(w.whole(s, "w"))))
    assert "experts, over ep" in text
    assert "cause" not in text


def test_a_failed_command_goes_before_what_its_audit_lacks(tmp_path: Path) -> None:
    nothing = examine(tmp_path, None)
    failed = after_failure(nothing, -9, tmp_path, 5)
    assert failed.reason == (
        "the command was ended by SIGKILL before any rank called a clip function of torch; its output says where"
    )
    for rank, when in (("1", 2.0), ("0", 3.0), (None, 1.0)):
        told = {"rank": rank, "error": f"ValueError: {rank}", "place": "train.py:7 in step", "time": when}
        (tmp_path / f"raised-{rank}-1.json").write_text(json.dumps(told))
    (tmp_path / "raised-2-1.json").write_text('{"rank": ')
    failed = after_failure(nothing, 3, tmp_path, 5)
    assert "ended with code 3 before" in str(failed.reason)
    assert "rank 1: ValueError: 1, at train.py:7 in step (and 1 more after it)" in str(failed.reason)
    written(tmp_path, 0, 3).done()
    failed = after_failure(examine(tmp_path, None), 3, tmp_path, 5)
    assert "by then 1 of 3 ranks had made 1 steps; ranks 1, 2 of 3 never called" in str(failed.reason)
    assert "mend this first" in failed.advice
    judged = after_failure(Verdict(2, 2), 3, tmp_path, 5)
    assert judged.findings[0].startswith("the command ended with code 3 after 2 of 5 steps: rank 1")


def test_each_line_says_what_was_compared_and_what_to_do() -> None:
    lines = [
        Line("whole model", 3, "agrees", 2.0, (2.0,), 1e-8),
        Line("part: w", 1, "not seen", None, why="rank 1 made no such call", fix="let it"),
        Line("part: v", 1, "differs", 2.0, (64.0,), 31.0, 1, (Cause("unknown", "nothing", "look"),)),
    ]
    verdict = Verdict(5, 2, 2.0, 2e-5, "from dtype", lines, ("a note -> a step",), problems=("a problem",))
    text = as_text(verdict)
    assert "whole model: agrees: the norms of 3 tensors on 2 ranks differ by at most 1.0e-08, allowed 2e-05" in text
    assert "part: w: not seen: rank 1 made no such call\n    -> let it\n" in text
    assert "part: v: the norm of 1 tensor on 2 ranks is 32 × the exact one in step 1, allowed 2e-05\n" in text
    assert "\n  likely cause\n  * unknown: nothing\n    -> look\n" in text
    assert "wrong, whatever the norms are\n  * a problem\n" in text
    assert "  * a note\n    -> a step\n" in text
    assert verdict.exit_code == 1
    assert Verdict(lines=lines[:1], problems=("a problem",)).exit_code == 1
