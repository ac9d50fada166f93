"""A step against the scripted fake: what is sent, when, and what is never sent."""

from __future__ import annotations

import gc
import math
import os
import threading

import numpy
import pytest
from fake_daemon import FakeDaemon, Fault, report

import gradsync
from gradsync import Tensor
from gradsync.errors import AccumulationError, NotReady, ProtocolError, RankLost, StepMismatch, UsageError


@pytest.fixture
def grads(job: gradsync.Job) -> gradsync.Grads:
    return job.declare([Tensor(name, (2, 3)) for name in "abcd"])  # buckets: (d, c), (b, a)


def steps_of(daemon: FakeDaemon) -> list[tuple[str, dict]]:
    names = ("bucket.ready", "tensor.unused", "step.finish", "norm.compute", "clip.apply")
    return [(name, params) for name, params in daemon.received if name in names]


def test_buckets_go_out_with_their_last_tensor_and_finish_repeats_all(
    grads: gradsync.Grads, daemon: FakeDaemon
) -> None:
    for name in "abcd":
        grads.ready(name, micro_batch=0)
    result = grads.finish()
    assert result.step == 0
    fence = {"epoch": 1, "attempt": 0, "step": 0}
    assert steps_of(daemon) == [
        ("bucket.ready", {**fence, "bucket": 1, "micro_batch": 0}),
        ("bucket.ready", {**fence, "bucket": 0, "micro_batch": 0}),
        ("step.finish", {**fence, "ready": "all"}),
    ]


def test_steps_count_on_and_attempts_follow_the_reports(grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon):
    for _ in range(2):
        for name in "abcd":
            grads.ready(name)
        grads.finish()
    for name in "abcd":
        grads.ready(name)
    grads.finish(step=40)
    assert [(p["step"], p["attempt"]) for p in daemon.of("step.finish")] == [(0, 0), (1, 1), (40, 2)]
    assert (job.last_step, job.next_step, job.attempt) == (40, 41, 3)


def test_a_resumed_job_counts_on_from_the_daemons_last_step(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.last_step, daemon.attempt = 99, 100
    grads = client.attach(job="j", rank=0, world_size=1).declare([Tensor("a", (1,))])
    grads.ready("a")
    assert grads.finish().step == 100


def test_unused_tensors_are_said_before_the_bucket_they_complete(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    grads.mark_unused("a")
    grads.mark_unused("a")
    grads.ready("d")
    grads.mark_unused("c")
    grads.ready("b")
    grads.finish(scale=1024, max_norm=None, timeout=1.5, bucket_digests=[7, 8])
    fence = {"epoch": 1, "attempt": 0, "step": 0}
    assert steps_of(daemon) == [
        ("tensor.unused", {**fence, "tensors": [0, 2]}),
        ("bucket.ready", {**fence, "bucket": 0}),
        ("bucket.ready", {**fence, "bucket": 1}),
        (
            "step.finish",
            {
                **fence,
                "ready": "all",
                "unused": [0, 2],
                "scale": 1024.0,
                "scaled": True,
                "max_norm": None,
                "timeout_ms": 1500,
                "bucket_digests": [7, 8],
            },
        ),
    ]
    for name in "abcd":  # the next step begins with nothing unused
        grads.ready(name)
    grads.finish(max_norm=math.inf)
    assert daemon.of("step.finish")[1] == {**fence, "attempt": 1, "step": 1, "ready": "all", "max_norm": None}


def test_finish_with_missing_tensors_names_them_and_sends_nothing(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    grads.ready("d")
    grads.ready("b")
    with pytest.raises(NotReady) as caught:
        grads.finish()
    assert caught.value.tensors == ("a", "c")
    assert "'a', 'c'" in str(caught.value)
    assert steps_of(daemon) == []
    grads.ready("a")
    grads.ready("c")
    assert grads.finish().step == 0


def test_accumulation_counts_calls(job: gradsync.Job, daemon: FakeDaemon) -> None:
    grads = job.declare([Tensor("a", (1,)), Tensor("b", (1,))], accumulate=2)
    grads.ready("a")
    grads.ready("b")
    with pytest.raises(NotReady, match="accumulate=2"):
        grads.finish()
    grads.ready("a")
    with pytest.raises(AccumulationError, match="'a' became ready 3 times"):
        grads.ready("a")
    with pytest.raises(AccumulationError, match="'b' cannot be unused"):
        grads.mark_unused("b")
    grads.ready("b", micro_batch=1)
    grads.finish()
    assert daemon.of("bucket.ready") == [{"epoch": 1, "attempt": 0, "step": 0, "bucket": 0, "micro_batch": 1}]
    assert daemon.of("tensor.unused") == []


def test_a_bucket_that_an_unused_mark_completes_goes_out_with_the_last_micro_batch(
    grads: gradsync.Grads, daemon: FakeDaemon
) -> None:
    grads.ready("d", micro_batch=2)
    grads.mark_unused("c")
    grads.ready("b", micro_batch=3)
    grads.ready("a")
    grads.finish()
    assert [p.get("micro_batch") for p in daemon.of("bucket.ready")] == [2, None]
    grads.mark_unused("c")
    grads.mark_unused("d")
    grads.compute_norm(ready="all", micro_batch=4)
    grads.apply_clip()
    assert [p.get("micro_batch") for p in daemon.of("bucket.ready")] == [2, None, None]
    grads.finish(ready="all", micro_batch=0)
    assert [p["micro_batch"] for p in (*daemon.of("norm.compute"), *daemon.of("step.finish")[1:])] == [4, 0]


def test_a_norm_that_was_only_looked_at_is_abandoned(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    with pytest.raises(UsageError, match=r"abandon\(\) needs the norm"):
        grads.abandon()
    grads.compute_norm(ready="all")
    assert grads.abandon(timeout=2.0).step == 0
    (sent,) = daemon.of("clip.apply")
    assert sent == {"epoch": 1, "attempt": 0, "step": 0, "abandon": True, "timeout_ms": 2000}
    assert grads.finish(ready="all").step == 1


def test_a_failed_step_resets_the_counters_and_takes_the_next_attempt(
    grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    def fail(params: dict) -> object:
        raise Fault("rank_lost", "rank 1 died", ranks=[1], epoch=5, attempt=0)

    daemon.script["step.finish"] = fail
    for name in "abcd":
        grads.ready(name)
    with pytest.raises(RankLost) as caught:
        grads.finish()
    assert caught.value.ranks == (1,)
    assert (job.epoch, job.attempt) == (5, 0)
    del daemon.script["step.finish"]
    with pytest.raises(NotReady):
        grads.finish()
    for name in "abcd":
        grads.ready(name)
    grads.finish()
    assert daemon.of("step.finish")[-1] == {"epoch": 5, "attempt": 0, "step": 0, "ready": "all"}


def test_arenas_know_which_steps_are_checked_as_the_daemon_says(
    grads: gradsync.Grads, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    assert grads.check
    for checked in (True, False, True, False):
        daemon.script["step.finish"] = lambda params, checked=checked: report(
            params["step"], params["epoch"], params["attempt"], check_next=checked
        )
        grads.finish(ready="all")
        assert grads.check is checked

    def fail(epoch: int, attempt: int | None) -> None:
        def answer(params: dict) -> object:
            where = {} if attempt is None else {"epoch": epoch, "attempt": attempt}
            raise Fault("rank_lost", "rank 1 died", **where)

        daemon.script["step.finish"] = answer
        with pytest.raises(RankLost):
            grads.finish(ready="all")

    fail(job.epoch, None)
    fail(job.epoch, 7)
    assert not grads.check, "the epoch goes on"
    fail(job.epoch + 1, 0)
    assert grads.check, "a new epoch begins with a check"


def test_an_error_without_an_attempt_leaves_the_step_open(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    def fail(params: dict) -> object:
        raise Fault("step_mismatch", "scale differs")

    daemon.script["step.finish"] = fail
    for name in "abcd":
        grads.ready(name)
    with pytest.raises(StepMismatch):
        grads.finish()
    del daemon.script["step.finish"]
    assert grads.finish().step == 0


def test_the_two_halves(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    with pytest.raises(UsageError, match=r"compute_norm\(\) first"):
        grads.apply_clip()
    for name in "abcd":
        grads.ready(name)
    assert grads.compute_norm(scale=2.0).norm == 2.0
    with pytest.raises(UsageError, match="half done"):
        grads.finish()
    with pytest.raises(UsageError, match="half done already"):
        grads.compute_norm()
    grads.apply_clip(0.5)
    fence = {"epoch": 1, "attempt": 0, "step": 0}
    assert steps_of(daemon)[2:] == [
        ("norm.compute", {**fence, "ready": "all", "scale": 2.0, "scaled": True}),
        ("clip.apply", {**fence, "max_norm": 0.5}),
    ]
    for name in "abcd":
        grads.ready(name)
    assert grads.finish().step == 1


def test_a_caller_that_counts_by_itself(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    assert [grads.index_of(name) for name in "abcd"] == [0, 1, 2, 3]
    assert [bucket.tensors for bucket in grads.buckets] == [(3, 2), (1, 0)]
    assert grads.offsets == [0, 64, 128, 192]
    grads.mark_unused_index(3)
    grads.ready_bucket(0)
    grads.mark_unused_index(1)
    grads.finish(ready="all", bucket_digests=[1, 2])
    fence = {"epoch": 1, "attempt": 0, "step": 0}
    assert steps_of(daemon) == [
        ("tensor.unused", {**fence, "tensors": [3]}),
        ("bucket.ready", {**fence, "bucket": 0}),
        ("step.finish", {**fence, "ready": "all", "unused": [3, 1], "bucket_digests": [1, 2]}),
    ]
    grads.finish(ready=[0, 1])
    assert daemon.of("step.finish")[-1]["ready"] == [0, 1]


def test_ready_from_many_threads_loses_nothing(job: gradsync.Job, daemon: FakeDaemon) -> None:
    names = [f"t{index}" for index in range(64)]
    grads = job.declare([Tensor(name, (1,)) for name in names], accumulate=4)
    barrier = threading.Barrier(4)

    def backward() -> None:
        barrier.wait(40)
        for name in names:
            grads.ready(name)

    threads = [threading.Thread(target=backward) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    grads.finish()
    assert sorted(params["bucket"] for params in daemon.of("bucket.ready")) == list(range(32))


def test_buffers_are_the_daemons_memory(job: gradsync.Job, daemon: FakeDaemon) -> None:
    grads = job.declare(
        [
            Tensor("f", (2, 2)),
            Tensor("b", (3,), dtype="bfloat16"),
            Tensor("d", (), dtype="float64"),
            Tensor("e", (0, 4)),
        ]
    )
    array = grads.input("f").numpy()
    array[:] = [[1, 2], [3, 4]]
    assert numpy.frombuffer(os.pread(daemon.arena(1), 16, 0), "f4").tolist() == [1, 2, 3, 4]
    bits = grads.input("b").numpy()
    assert (bits.dtype, bits.shape, grads.offsets[1]) == (numpy.uint16, (3,), 64)
    os.pwrite(daemon.arena(1), b"\x80\x3f" * 3, 64)
    assert bits.tolist() == [0x3F80] * 3
    assert (grads.output("d").numpy().shape, grads.input("d").nbytes) == ((), 8)
    assert grads.input("e").numpy().shape == (0, 4)
    assert grads.arena_memoryview().nbytes == 64 * 3
    assert grads.input("f").memoryview()[:4].tobytes() == numpy.float32(1).tobytes()


def test_buffers_as_torch_tensors(job: gradsync.Job) -> None:
    pytest.importorskip("torch")
    grads = job.declare(
        [Tensor(dtype, (2, 3), dtype=dtype) for dtype in ("float32", "bfloat16", "float16", "float64")]
        + [Tensor("none", (0,))]
    )
    for tensor in grads.tensors:
        view = grads.input(tensor.name).torch()
        assert (str(view.dtype), tuple(view.shape)) == (f"torch.{tensor.dtype}", tensor.shape)
        view.fill_(1)
    assert grads.input("float64").numpy().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert grads.input("bfloat16").numpy().tolist() == [[0x3F80] * 3] * 2


def test_views_outlive_everything(daemon: FakeDaemon) -> None:
    import gc

    with gradsync.connect(daemon.path) as client:
        view = client.attach(job="j", rank=0, world_size=1).declare([Tensor("a", (1000,))]).input("a").numpy()
    del client
    gc.collect()
    view[:] = 5
    assert view.sum() == 5000


def test_memory_is_unmapped_with_its_last_view(job: gradsync.Job) -> None:
    import gc

    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any("memfd:fake-arena" in line for line in maps)

    grads = job.declare([Tensor("a", (1000,))])
    view = grads.input("a").numpy()
    job.detach()
    del grads
    gc.collect()
    assert mapped()
    del view
    gc.collect()
    assert not mapped()


def test_one_descriptor_of_the_arena_stays_open_as_long_as_it_is_declared(job: gradsync.Job) -> None:
    def arenas() -> int:  # the fake's own one is among them
        found = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                found += "memfd:fake-arena" in os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
        return found

    gc.collect()  # whatever tests before this one left
    before = arenas()
    view = job.declare([Tensor("a", (1000,))]).input("a")
    assert arenas() == before + 2
    job.detach()
    gc.collect()
    assert arenas() == before + 1
    del view


def test_an_unknown_name_lists_those_declared(grads: gradsync.Grads) -> None:
    for call in (grads.ready, grads.input, grads.output, grads.mark_unused, grads.index_of):
        with pytest.raises(UsageError, match="'a', 'b', 'c', 'd'"):
            call("z")


def test_nothing_works_after_detach(grads: gradsync.Grads, job: gradsync.Job) -> None:
    job.detach()
    for call in (lambda: grads.ready("a"), grads.finish, lambda: job.declare([]), lambda: job.pause().__enter__()):
        with pytest.raises(UsageError, match="detached"):
            call()


def test_a_timeout_of_zero_is_refused(grads: gradsync.Grads) -> None:
    with pytest.raises(UsageError, match="timeout=0"):
        grads.finish(ready="all", timeout=0)


def test_a_bad_token_is_typed(job: gradsync.Job, daemon: FakeDaemon) -> None:
    normal = daemon.on_buffers_allocate
    daemon.script["buffers.allocate"] = lambda params: {**normal(params), "token": "0" * 32}
    with pytest.raises(gradsync.errors.BadToken):
        job.declare([Tensor("a", (1,))])
    assert daemon.live_buffers == []


def test_an_unreadable_report_is_a_protocol_error(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    daemon.script["step.finish"] = lambda params: {"norm": 1}
    with pytest.raises(ProtocolError):
        grads.finish(ready="all")


def test_status_stats_and_explain(client: gradsync.Client, grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    assert client.status()["version"] == "9.9.9"
    daemon.script["stats.get"] = lambda params: {"reports": [report(3, absent=[0]), report(4)]}
    reports = client.stats(last=2)
    assert [(r.step, r.absent) for r in reports] == [(3, ("a",)), (4, ())]
    tensors = [{"name": f"t{index}"} for index in range(1100)]

    def explain(params: dict) -> dict:
        page = tensors[params["offset"] : params["offset"] + params["limit"]]
        return {"job": "j", "digest": "d", "total": len(tensors), "offset": params["offset"], "tensors": page}

    daemon.script["plan.explain"] = explain
    assert grads.explain()["tensors"] == tensors
    assert client.call("stats.get", {"job": "j", "last": 1})["reports"][0]["step"] == 3


def test_events_reach_the_callback_until_cancelled(client: gradsync.Client, daemon: FakeDaemon) -> None:
    got: list[dict] = []
    came = threading.Event()

    def callback(params: dict) -> None:
        got.append(params)
        came.set()
        raise RuntimeError("a careless callback")

    def push(subscription: int) -> None:
        params = {"subscription": subscription, "topic": "step", "job": "j", "dropped": 0, "event": {}}
        daemon.push({"jsonrpc": "2.0", "method": "events.notification", "params": params})

    with client.subscribe(["step"], callback, job="j"):
        push(99)
        push(1)
        assert came.wait(40)
        assert [params["subscription"] for params in got] == [1]
    push(1)
    client.status()
    assert len(got) == 1
    assert daemon.of("events.subscribe") == [{"topics": ["step"], "job": "j"}]
    assert daemon.of("events.unsubscribe") == [{"subscription": 1}]


def test_a_call_from_a_callback_is_refused_instead_of_hanging(client: gradsync.Client, daemon: FakeDaemon) -> None:
    errors: list[BaseException] = []
    came = threading.Event()

    def callback(params: dict) -> None:
        try:
            client.status()
        except UsageError as error:
            errors.append(error)
        came.set()

    with client.subscribe(["step"], callback):
        params = {"subscription": 1, "topic": "step", "job": "j", "dropped": 0, "event": {}}
        daemon.push({"jsonrpc": "2.0", "method": "events.notification", "params": params})
        assert came.wait(40)
    assert "callback" in str(errors[0])
