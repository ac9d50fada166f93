"""A daemon that ends behind its vote for a step of several nodes: the next one says what the nodes came to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_daemon import NO_REPLY, FakeDaemon, Fault, report

import gradsync
from gradsync import Row, Tensor
from gradsync.errors import ConnectionLost, DeclareTimeout, ProtocolError, StepInDoubt

TENSORS = [Tensor("a", (4,)), Tensor("b", (4,))]
ROW = Row(30.0, maximum=4.0, fingerprint=7)


@pytest.fixture
def table(job: gradsync.Job, daemon: FakeDaemon) -> gradsync.ReducedGrads:
    daemon.keeps_records = True
    table = job.declare(TENSORS, data_path="stats")
    fill(table)
    return table


def fill(table: gradsync.ReducedGrads) -> None:
    for tensor in TENSORS:
        table.write(tensor.name, ROW)


def dies_behind_its_vote(daemon: FakeDaemon, method: str, result: Callable[[dict[str, Any]], Any] | None) -> None:
    """The daemon ends in the next call of the method; `result`: the verdict of its successor, or a refusal."""

    def end(params: dict[str, Any]) -> Any:
        epoch, attempt = params["epoch"], params["attempt"]
        daemon.memory.note_voted(epoch, attempt, report(params.get("step", 0), epoch, attempt, norm=3.5))
        del daemon.script[method]
        daemon.restart()
        if result is not None:
            daemon.script["gradients.declare"] = result
        return NO_REPLY

    daemon.script[method] = end


def says(daemon: FakeDaemon, verdict: str) -> Callable[[dict[str, Any]], Any]:
    def answer(params: dict[str, Any]) -> Any:
        reply = daemon.on_gradients_declare(params)
        return reply | {"verdict": verdict} if "doubt" in params else reply

    return answer


def test_a_step_that_the_nodes_did_returns_its_result_and_the_rank_goes_on_at_the_new_daemon(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    dies_behind_its_vote(daemon, "step.finish", says(daemon, "done"))
    result = table.finish()
    assert (result.step, result.norm) == (0, 3.5)
    assert len(daemon.of("step.finish")) == 1, "it is not made again"
    said = daemon.of("gradients.declare")[-1]
    assert said["doubt"] == {"epoch": 1, "attempt": 0}
    assert said["comes_back"] is True
    assert "last_done" not in said
    fill(table)
    assert table.finish().step == 1
    assert daemon.of("step.finish")[-1]["epoch"] == 1001
    assert len(daemon.of("gradients.declare")) == 2, "it has declared there already"

    daemon.restart()
    fill(table)
    assert table.finish().step == 2
    again = daemon.of("gradients.declare")[-1]
    assert again["last_done"] == {"epoch": 1001, "attempt": 0}
    assert "doubt" not in again


def test_a_step_that_the_nodes_failed_is_made_again(table: gradsync.ReducedGrads, daemon: FakeDaemon) -> None:
    dies_behind_its_vote(daemon, "step.finish", says(daemon, "failed"))
    assert table.finish().step == 0
    assert [params["epoch"] for params in daemon.of("step.finish")] == [1, 1001]


def test_the_last_step_that_was_done_is_the_one_that_was_in_doubt(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    dies_behind_its_vote(daemon, "step.finish", says(daemon, "done"))
    table.finish()
    daemon.restart()
    fill(table)
    table.finish()
    assert daemon.of("gradients.declare")[-1]["last_done"] == {"epoch": 1, "attempt": 0}


def test_a_daemon_that_ends_before_its_verdict_leaves_the_doubt_to_the_next(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    def ends_too(params: dict[str, Any]) -> Any:
        daemon.script["gradients.declare"] = says(daemon, "done")
        daemon.restart()
        return NO_REPLY

    dies_behind_its_vote(daemon, "step.finish", ends_too)
    assert table.finish().norm == 3.5
    assert [params.get("doubt") for params in daemon.of("gradients.declare")[1:]] == [{"epoch": 1, "attempt": 0}] * 2


def test_what_nobody_knows_is_said_once_and_the_rank_may_go_on(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    def unknown(params: dict[str, Any]) -> Any:
        raise Fault("step_in_doubt", "nobody can say", 1409)

    dies_behind_its_vote(daemon, "step.finish", unknown)
    with pytest.raises(StepInDoubt, match="nobody can say"):
        table.finish()
    del daemon.script["gradients.declare"]
    fill(table)
    assert table.finish().step == 0
    assert "doubt" not in daemon.of("gradients.declare")[-1]


def test_a_daemon_that_gives_no_verdict_is_of_another_release(table: gradsync.ReducedGrads, daemon: FakeDaemon) -> None:
    dies_behind_its_vote(daemon, "step.finish", None)
    with pytest.raises(ProtocolError, match="did not say what came of the step in doubt"):
        table.finish()


def test_a_failed_step_whose_gradients_were_being_written_is_lost(job: gradsync.Job, daemon: FakeDaemon) -> None:
    daemon.keeps_records = True
    grads = job.declare(TENSORS)
    dies_behind_its_vote(daemon, "step.finish", says(daemon, "failed"))
    daemon.memory.note_begun(1, 0)
    with pytest.raises(ConnectionLost) as lost:
        grads.finish(ready="all")
    assert lost.value.step_lost
    assert grads.finish(ready="all").step == 0
    assert daemon.of("step.finish")[-1]["epoch"] == 1001
    assert len(daemon.of("gradients.declare")) == 2, "it has declared there already: once more, and all ranks have to"


def test_the_second_half_of_a_step_has_a_doubt_of_its_own(table: gradsync.ReducedGrads, daemon: FakeDaemon) -> None:
    table.compute_norm()
    dies_behind_its_vote(daemon, "clip.apply", says(daemon, "done"))
    assert table.apply_clip(1.0).norm == 3.5
    assert len(daemon.of("norm.compute")) == 1


def test_a_call_that_does_not_belong_to_the_step_goes_on_behind_it(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    daemon.script["policy.export"] = lambda params: {"state": "00" * 8}
    daemon.memory.note_voted(1, 0, report(0, 1, 0))
    daemon.restart()
    daemon.script["gradients.declare"] = says(daemon, "done")
    assert table.state_dict()["policies"] == "00" * 8
    assert daemon.of("gradients.declare")[-1]["doubt"] == {"epoch": 1, "attempt": 0}


def test_an_observer_that_comes_back_by_itself_remembers_the_step(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    daemon.memory.note_voted(1, 0, report(0, 1, 0))
    daemon.restart()
    daemon.script["gradients.declare"] = says(daemon, "done")
    daemon.wait_for("job.attach", 2)
    table.come_back()
    daemon.restart()
    daemon.wait_for("job.attach", 3)
    table.come_back()
    assert daemon.of("gradients.declare")[-1]["last_done"] == {"epoch": 1, "attempt": 0}


@pytest.mark.parametrize("anew", [False, True])
def test_gradients_that_were_computed_anew_over_a_result_are_not_taken_for_it(
    job: gradsync.Job, daemon: FakeDaemon, anew: bool
) -> None:
    def refuse(params: dict[str, Any]) -> Any:
        raise Fault("declare_timeout", "rank 1 did not declare in time")

    daemon.keeps_records = True
    grads = job.declare(TENSORS)
    for tensor in TENSORS:
        grads.ready(tensor.name)
    dies_behind_its_vote(daemon, "step.finish", refuse)
    with pytest.raises(DeclareTimeout):
        grads.finish()
    daemon.script["gradients.declare"] = says(daemon, "done")
    if not anew:
        assert grads.finish().norm == 3.5
        return
    for tensor in TENSORS:
        grads.ready(tensor.name)
    with pytest.raises(StepInDoubt, match="go on from a checkpoint"):
        grads.finish()
    for tensor in TENSORS:
        grads.ready(tensor.name)
    assert grads.finish().step == 1
