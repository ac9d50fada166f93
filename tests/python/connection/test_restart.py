"""A daemon that ends in the middle of a run, and the next one: what is made again, what is returned, what is lost.

Against a fake, which can end at any moment of a step. Real daemons are killed in
tests/integration/ranks/test_restarts.py.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from fake_daemon import NO_REPLY, FakeDaemon, Fault, report

import gradsync
from gradsync import Row, Tensor, _job
from gradsync._step import _declaring, _reconnect
from gradsync._transport import _channel, _connection
from gradsync.errors import (
    AccumulationError,
    CallTimeout,
    ClipRaised,
    ConnectionLost,
    DeclareTimeout,
    StaleEpoch,
    UsageError,
)

TENSORS = [Tensor("a", (4,), weight_fingerprint="1" * 16), Tensor("b", (4,), weight_fingerprint="2" * 16)]


@pytest.fixture
def grads(job: gradsync.Job, daemon: FakeDaemon) -> gradsync.Grads:
    daemon.keeps_records = True
    return job.declare(TENSORS)


@pytest.fixture
def table(job: gradsync.Job, daemon: FakeDaemon) -> gradsync.ReducedGrads:
    daemon.keeps_records = True
    return job.declare(TENSORS, data_path="stats")


def dies_in(daemon: FakeDaemon, method: str, before: Callable[[dict[str, Any]], None] = lambda params: None) -> None:
    """The daemon ends in the next call of a method, after `before`; the one after it is whole."""

    def end(params: dict[str, Any]) -> Any:
        before(params)
        del daemon.script[method]
        daemon.restart()
        return NO_REPLY

    daemon.script[method] = end


def wait_until_moved(job: gradsync.Job) -> None:
    while job._session.seat == job.seat:
        job.client.status()


def begun(daemon: FakeDaemon) -> Callable[[dict[str, Any]], None]:
    return lambda params: daemon.memory.note_begun(params["epoch"], params["attempt"])


def done(daemon: FakeDaemon, **fields: Any) -> Callable[[dict[str, Any]], None]:
    def note(params: dict[str, Any]) -> None:
        daemon.memory.note_begun(params["epoch"], params["attempt"])
        result = report(params["step"], params["epoch"], params["attempt"], **fields)
        daemon.memory.note_done(params["epoch"], params["attempt"], result)

    return note


def test_a_step_whose_inputs_are_whole_is_made_again(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    view = grads.arena_memoryview().cast("f")
    memory = os.fstat(daemon.arena(1)).st_ino
    dies_in(daemon, "step.finish")
    assert grads.finish(ready="all", unused=[1], scale=2.0).step == 0
    first, second = daemon.of("step.finish")
    assert second == first | {"epoch": 1001, "attempt": 0}
    (again,) = daemon.live_buffers
    assert again != 1
    assert os.fstat(daemon.arena(again)).st_ino == memory, "the same memory, and the view is of it"
    view[0] = 7.0
    assert os.pread(daemon.arena(again), 4, 0) == b"\0\0\xe0\x40"
    assert grads.finish(ready="all").step == 1
    before, after = daemon.of("gradients.declare")
    assert after["tensors"] == before["tensors"], "no step was done: weights are still compared"
    assert after["buffer"] == again


def test_a_step_that_was_done_returns_its_result(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    dies_in(daemon, "step.finish", done(daemon, norm=3.5))
    result = grads.finish(ready="all")
    assert (result.step, result.norm) == (0, 3.5)
    assert len(daemon.of("step.finish")) == 1
    assert grads.finish(ready="all").step == 1, "and the rank comes back in its next step"
    assert daemon.of("step.finish")[-1]["epoch"] == 1001
    after = daemon.of("gradients.declare")[-1]
    assert all("weight_fingerprint" not in tensor for tensor in after["tensors"]), "weights have moved"
    assert after["last_done"] == {"epoch": 1, "attempt": 0}, "policies go on from there"


def test_a_step_that_was_done_and_raises_raises(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    dies_in(daemon, "step.finish", done(daemon, action="raise", skipped=True, reason="norm is not finite: nan"))
    with pytest.raises(ClipRaised, match="norm is not finite: nan"):
        grads.finish(ready="all")
    assert grads.finish(ready="all").step == 1
    assert [params["step"] for params in daemon.of("step.finish")] == [0, 1]


def test_gradients_that_were_being_reduced_are_lost_once(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    grads.ready("a")
    grads.ready("b")
    dies_in(daemon, "step.finish", begun(daemon))
    with pytest.raises(ConnectionLost, match="compute the step anew") as lost:
        grads.finish()
    assert lost.value.step_lost
    assert pickle.loads(pickle.dumps(lost.value)).step_lost
    grads.ready("a")
    grads.ready("b")
    assert grads.finish().step == 0
    first, second = daemon.of("step.finish")
    assert (first["epoch"], second["epoch"]) == (1, 1001)


@pytest.mark.parametrize("touched", [False, True])
def test_a_daemon_that_ends_between_calls_is_noticed_in_the_next(
    grads: gradsync.Grads, daemon: FakeDaemon, touched: bool
) -> None:
    grads.ready("a")
    grads.ready("b")
    daemon.wait_for("bucket.ready")
    if touched:
        daemon.memory.note_begun(1, 0)
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    if touched:
        with pytest.raises(ConnectionLost) as lost:
            grads.finish()
        assert lost.value.step_lost
    else:
        assert grads.finish().step == 0
        assert len(daemon.of("step.finish")) == 1


def test_a_later_attempt_than_ones_own_loses_the_gradients_too(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    dies_in(daemon, "step.finish", lambda params: daemon.memory.note_begun(params["epoch"] + 1, 0))
    with pytest.raises(ConnectionLost) as lost:
        grads.finish(ready="all")
    assert lost.value.step_lost


def test_rows_are_stamped_again_and_the_norm_is_asked_for_again(
    table: gradsync.ReducedGrads, daemon: FakeDaemon
) -> None:
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    table.write("a", Row.of([3.0]))
    table.write("b", None)
    assert daemon.of("norm.compute") == []
    assert table.compute_norm(scale=4.0).step == 0
    (buffer,) = daemon.live_buffers
    assert [row[0] for row in daemon.table(buffer)] == [1001 << 32 | 1, 0]
    dies_in(daemon, "clip.apply")
    assert table.apply_clip(max_norm=1.0).step == 0
    first, again = daemon.of("norm.compute")
    assert again == first | {"epoch": 2001, "attempt": 0}
    assert [params["epoch"] for params in daemon.of("clip.apply")] == [1001, 2001]
    (buffer,) = daemon.live_buffers
    assert [row[0] for row in daemon.table(buffer)] == [2001 << 32 | 1, 0]
    assert table.check, "a new epoch begins with fingerprints"


def test_a_daemon_that_ends_while_a_rank_comes_back_is_waited_for_too(
    grads: gradsync.Grads, daemon: FakeDaemon
) -> None:
    dies_in(daemon, "step.finish")
    dies_in(daemon, "gradients.declare")
    dies_in(daemon, "buffers.adopt")
    assert grads.finish(ready="all").step == 0
    assert daemon.of("step.finish")[-1]["epoch"] == 3001
    assert len(daemon.live_buffers) == 1


def test_what_was_decided_by_the_record_is_not_decided_again(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    dies_in(daemon, "step.finish", begun(daemon))
    with pytest.raises(ConnectionLost):
        grads.finish(ready="all")
    dies_in(daemon, "gradients.declare")  # the next life ends before it has a record
    assert grads.finish(ready="all").step == 0


def test_a_token_that_came_too_late_is_asked_for_again(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    normal, wrong = daemon.on_buffers_adopt, iter([True, False])
    daemon.script["buffers.adopt"] = lambda params: normal(params) | ({"token": "0" * 32} if next(wrong) else {})
    assert grads.finish(ready="all").step == 0


def test_another_plan_is_refused(grads: gradsync.Grads, daemon: FakeDaemon, job: gradsync.Job) -> None:
    daemon.plan_digest = "cd" * 8
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="plan cdcdcdcdcdcdcdcd of what was plan abababab") as lost:
            grads.finish(ready="all")
        assert not lost.value.step_lost
    assert len(daemon.of("job.detach")) == 1, "the others learn that this rank does not go on"
    assert daemon.of("buffers.release") == [], "which would free the pages under live views"
    assert daemon.of("step.finish") == []


def refuses_to_declare(daemon: FakeDaemon) -> None:
    def refuse(params: dict[str, Any]) -> Any:
        raise Fault("declare_timeout", "rank 1 did not declare in time")

    daemon.restart()
    daemon.wait_for("job.attach", 2)
    daemon.script["gradients.declare"] = refuse


def test_a_refused_declaration_is_told_and_may_be_made_again(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    refuses_to_declare(daemon)
    grads.ready("a")
    grads.mark_unused("b")
    for _ in range(2):
        with pytest.raises(DeclareTimeout, match="rank 1"):
            grads.finish(timeout=900)  # longer than every limit of the client's own
    left_ms = daemon.of("gradients.declare")[-1]["timeout_ms"]
    assert 600_000 < left_ms <= 900_000, "the caller's patience, less what has passed of it"
    assert daemon.of("buffers.release") == []
    assert daemon.of("job.detach") == []
    del daemon.script["gradients.declare"]
    assert grads.finish().step == 0
    assert daemon.of("step.finish")[-1]["unused"] == [1]
    assert len(daemon.of("buffers.adopt")) == 1, "handed over already"
    grads.ready("a")
    with pytest.raises(AccumulationError):
        grads.ready("a")


@pytest.mark.parametrize("first", ["ready", "mark_unused"])
def test_behind_a_refused_declaration_the_step_may_be_computed_anew(
    grads: gradsync.Grads, daemon: FakeDaemon, first: str
) -> None:
    refuses_to_declare(daemon)
    grads.ready("a")
    grads.mark_unused("b")
    with pytest.raises(DeclareTimeout):
        grads.finish()
    del daemon.script["gradients.declare"]
    if first == "ready":
        grads.ready("a")
        grads.ready("b")
    else:
        grads.mark_unused("b")
        grads.ready("a")
    with pytest.raises(AccumulationError):
        grads.ready("a")
    assert grads.finish().step == 0
    assert daemon.of("step.finish")[-1].get("unused", []) == ([] if first == "ready" else [1])


@pytest.mark.parametrize("again", [False, True])
def test_a_second_half_that_could_not_be_asked_for_may_be_made_again_or_the_step_computed_anew(
    table: gradsync.ReducedGrads, daemon: FakeDaemon, again: bool
) -> None:
    for name in ("a", "b"):
        table.write(name, Row.of([3.0]))
    table.compute_norm()
    refuses_to_declare(daemon)
    with pytest.raises(DeclareTimeout):
        table.apply_clip()
    del daemon.script["gradients.declare"]
    if again:
        assert table.apply_clip().step == 0
    else:
        for name in ("a", "b"):
            table.write(name, Row.of([3.0]))
        assert table.finish().step == 0


def test_a_state_that_could_not_be_asked_for_forgets_nothing_of_the_step(
    grads: gradsync.Grads, daemon: FakeDaemon
) -> None:
    refuses_to_declare(daemon)
    grads.ready("a")
    with pytest.raises(DeclareTimeout):
        grads.state_dict()
    del daemon.script["gradients.declare"]
    with pytest.raises(AccumulationError):
        grads.ready("a")
    grads.ready("b")
    assert grads.finish().step == 0


def test_a_record_that_cannot_be_fetched_costs_nothing_but_the_next_restart(
    job: gradsync.Job, daemon: FakeDaemon
) -> None:
    daemon.keeps_records = True
    normal = daemon.on_gradients_declare
    offer = {"record": {"token": "0" * 32, "bytes": 8192}}
    daemon.script["gradients.declare"] = lambda params: normal(params) | offer
    grads = job.declare(TENSORS)
    assert grads.finish(ready="all").step == 0
    assert len(daemon.of("gradients.declare")) == 1
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    with pytest.raises(ConnectionLost, match="arenas and plan are gone; detach, attach and declare again"):
        grads.finish(ready="all")


def test_a_daemon_that_ends_before_its_record_is_fetched(
    grads: gradsync.Grads, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, ends = _declaring.fetch_fd, iter([True])

    def fetch_fd(*arguments: Any) -> int:
        if next(ends, False):
            daemon.restart()
            raise ConnectionLost("the fd socket did not answer")
        return fetch(*arguments)

    monkeypatch.setattr(_declaring, "fetch_fd", fetch_fd)
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    assert grads.finish(ready="all").step == 0
    assert daemon.of("step.finish")[0]["epoch"] == 2001
    dies_in(daemon, "step.finish", begun(daemon))
    with pytest.raises(ConnectionLost) as lost:
        grads.finish(ready="all")
    assert lost.value.step_lost, "decided by the record of the third"


def test_an_interrupted_come_back_is_made_again(
    grads: gradsync.Grads, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    daemon.restart()
    daemon.wait_for("job.attach", 2)
    with monkeypatch.context() as patch:
        patch.setattr(_declaring.Declaring, "declare", interrupt)
        with pytest.raises(KeyboardInterrupt):
            grads.finish(ready="all")
    assert grads.finish(ready="all").step == 0


def test_a_new_declaration_releases_no_memory_of_the_daemon_before(
    grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    daemon.memory.made = 0  # numbers begin anew with each daemon
    daemon.restart()
    wait_until_moved(job)
    job.declare([Tensor("c", (2,))])
    assert daemon.of("buffers.release") == []
    assert len(daemon.live_buffers) == 1


def test_detaching_while_the_daemon_ends_is_no_error(
    grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    dies_in(daemon, "job.detach")
    job.detach()


def test_a_daemon_that_drains_is_asked_until_its_successor_is_there(
    grads: gradsync.Grads, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reconnect, "_LONGEST_DELAY_S", 0.02)
    draining = iter([True, True, False])

    def declare(params: dict[str, Any]) -> Any:
        if next(draining):
            raise Fault("draining")
        return daemon.on_gradients_declare(params)

    daemon.restart()
    daemon.wait_for("job.attach", 2)
    daemon.script["gradients.declare"] = declare
    assert grads.finish(ready="all").step == 0


@pytest.mark.parametrize("records", [False, True])
def test_with_a_daemon_of_the_release_before_a_restart_is_final(
    job: gradsync.Job, daemon: FakeDaemon, records: bool
) -> None:
    def unknown(params: dict[str, Any]) -> Any:
        raise Fault("method_not_found", "there is no method buffers.adopt", code=-32601)

    daemon.keeps_records = records
    grads = job.declare(TENSORS)
    daemon.script["buffers.adopt"] = unknown
    dies_in(daemon, "step.finish")
    with pytest.raises(ConnectionLost, match=r"the daemon was restarted.*detach, attach and declare again"):
        grads.finish(ready="all")
    with pytest.raises(ConnectionLost, match="the daemon was restarted"):
        grads.finish(ready="all")
    assert job.client.status()["state"] == "serving"
    job.detach()  # as the error says
    grads = job.client.attach(job="j", rank=0, world_size=1).declare(TENSORS)
    assert grads.finish(ready="all").step == 0


def test_a_paused_rank_is_paused_at_the_next_daemon_too(
    grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    with job.pause():
        daemon.restart()
        daemon.wait_for("job.pause", 2)
    assert [params["paused"] for params in daemon.of("job.pause")] == [True, True, False]
    daemon.restart()
    daemon.wait_for("job.attach", 3)
    assert grads.finish(ready="all").step == 0
    assert len(daemon.of("job.pause")) == 3


def test_a_rank_leaves_the_next_daemon_as_well(grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon) -> None:
    daemon.restart()
    daemon.wait_for("job.attach", 2)
    job.detach()  # perhaps before the connection is in use: then it leaves when it is
    daemon.wait_for("job.detach", 1)
    with pytest.raises(UsageError, match="no longer declared"):
        grads.finish(ready="all")


def test_declaring_anew_needs_nothing_of_the_daemon_before(
    grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    daemon.restart()
    wait_until_moved(job)
    anew = job.declare([Tensor("c", (2,))])
    assert daemon.of("buffers.adopt") == []
    assert anew.finish(ready="all").step == 0


def test_a_daemon_that_ends_during_declare_is_told(job: gradsync.Job, daemon: FakeDaemon) -> None:
    daemon.keeps_records = True
    dies_in(daemon, "gradients.declare")
    with pytest.raises(ConnectionLost):
        job.declare(TENSORS)
    assert job.declare(TENSORS).finish(ready="all").step == 0


def test_errors_of_the_daemon_are_not_losses(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    def stale(params: dict[str, Any]) -> Any:
        raise Fault("stale_epoch", epoch=2, attempt=0)

    daemon.script["step.finish"] = stale
    with pytest.raises(StaleEpoch):
        grads.finish(ready="all")
    assert daemon.of("buffers.adopt") == []


def test_all_losses_since_the_last_step_have_one_clock(
    grads: gradsync.Grads, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = grads._job._channel._connection
    connection._patience_s = 0.0
    dies_in(daemon, "step.finish", lambda params: daemon.stop_listening())
    with pytest.raises(ConnectionLost, match="does not come back"):
        grads.finish(ready="all")
    daemon.listen()
    assert _connection._RECONNECT_S == 60.0


def test_a_step_renews_the_clock(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    connection = grads._job._channel._connection
    connection._patience_s = 1.0
    assert grads.finish(ready="all").step == 0
    assert connection._patience_s == _connection._RECONNECT_S


def test_a_forked_child_keeps_no_descriptor(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    arena = grads._layout.arena
    kept = arena.fd
    assert kept >= 0
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(kept)
        except OSError:
            os.write(writer, b"closed")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 10) == b"closed"
    os.close(reader)
    os.waitpid(child, 0)
    os.fstat(kept)
    assert grads.finish(ready="all").step == 0


@pytest.mark.parametrize("declared", [False, True])
def test_a_timeout_of_the_caller_is_the_limit_for_the_whole_call(
    job: gradsync.Job, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    daemon.keeps_records = True
    grads = job.declare(TENSORS)
    if declared:  # the daemon is there again at once, but does not answer to the next declaration
        dies_in(daemon, "step.finish", lambda params: daemon.script.update({"gradients.declare": lambda p: NO_REPLY}))
    else:
        dies_in(daemon, "step.finish", lambda params: daemon.stop_listening())
    monkeypatch.setattr(_channel, "_GRACE_S", 0.1)
    with pytest.raises(CallTimeout):  # the other limits are a minute and more
        grads.finish(ready="all", timeout=0.5)
    if not declared:
        daemon.listen()


def test_an_attach_waits_no_longer_than_its_caller_says(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_channel, "_GRACE_S", 0.1)
    dies_in(daemon, "job.attach", lambda params: daemon.stop_listening())
    with pytest.raises(CallTimeout):  # a daemon that stays away is waited for a minute
        client.attach(job="j", rank=0, world_size=1, timeout=0.5)
    daemon.listen()


@pytest.mark.parametrize("answers", [True, False])
def test_a_slow_call_says_once_which_ranks_it_waits_for(
    client: gradsync.Client,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answers: bool,
) -> None:
    grads = client.attach(job="slow", rank=0, world_size=4).declare(TENSORS)
    monkeypatch.setattr(_channel, "_SLOW_S", 0.05)
    monkeypatch.setattr(_channel, "_GRACE_S", 0.1)
    monkeypatch.setattr(_job, "_GLANCE_S", 40.0 if answers else 0.05)
    rank = {"state": "declared", "waiting_in": "", "paused": False}
    ranks = [
        rank | {"rank": 0, "pid": 10, "waiting_in": "step.finish"},
        rank | {"rank": 1, "pid": 11},
        rank | {"rank": 2, "pid": 12, "paused": True},
    ]
    daemon.script["step.finish"] = lambda params: NO_REPLY
    daemon.script["status.get"] = lambda params: {"jobs": [{"job": "slow", "ranks": ranks}]} if answers else NO_REPLY
    monkeypatch.setattr(type(grads._job), "_somebody_paused", lambda self: False)
    with pytest.raises(CallTimeout):
        grads.finish(ready="all", timeout=0.3)
    lines = [record.getMessage() for record in caplog.records if "waits for" in record.getMessage()]
    assert len(lines) == 1
    waits_for = "rank 1 (pid 11, declared), rank 2 (pid 12, paused), rank 3 (not attached)"
    assert lines[0].endswith(waits_for if answers else "the daemon, which does not answer status.get either")
