"""Mode observe: the framework's own results to the bit, ours beside them, and no daemon that can disturb."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from drop_ins import Norms, backward, copies, net
from observers import PATIENT_S, init, observing  # noqa: F401  a fixture
from torch import nn

import gradsync.torch as gst
from gradsync import _job
from gradsync._session import _rank_session
from gradsync._transport import _connection, _handshake, _turns
from gradsync.errors import UsageError
from gradsync.torch._reduced._observation import Observation
from gradsync.torch._reduced._observer import PATIENCE_S, Observer


def hurry(observer: Observer) -> None:
    """From now on as impatient as it is outside of tests."""
    observer._most = observer._patience = PATIENCE_S


def train(model: nn.Module, clip: Any, steps: int = 4) -> list[torch.Tensor]:
    """Weights after some steps, and the norms."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        found.append(clip(model.parameters(), 0.5).clone())
        optimizer.step()
    return [*found, *(p.detach().clone() for p in model.parameters())]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_results_are_torchs_to_the_bit_and_ours_stand_beside(daemon: Any, norms: Norms) -> None:
    expected = train(net(), nn.utils.clip_grad_norm_)
    model = net()
    observer = init(daemon.path, model)
    assert isinstance(observer, Observer)
    assert same(train(model, gst.clip_grad_norm_), expected)
    seen = observer.wait(PATIENT_S)
    assert isinstance(seen, Observation)
    assert (seen.report.step, seen.theirs) == (3, expected[3].item())
    assert abs(seen.relative_difference) < 1e-6
    assert gst.last_report() is seen.report
    assert observer.skipped == 0
    assert "max_norm" not in daemon.of("step.finish")[-1]


def test_a_clip_of_ones_own_is_observed_by_one_line(daemon: Any, norms: Norms) -> None:
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    before = copies(model)
    gst.observe(7.0)
    gst.observe()
    seen = observer.wait(PATIENT_S)
    assert same(before, copies(model))
    assert (seen.report.step, seen.theirs, seen.relative_difference) == (1, None, None)


def test_halves_are_torchs(daemon: Any, norms: Norms) -> None:
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    norm = gst.get_total_norm([p.grad for p in model.parameters()])
    gst.clip_grads_with_norm_(model.parameters(), 0.1, norm)
    assert observer.wait(PATIENT_S).theirs == norm.item()
    assert nn.utils.get_total_norm(copies(model)) < 0.11


@pytest.mark.long
def test_no_daemon_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = train(net(), nn.utils.clip_grad_norm_)
    model = net()
    observer = init(str(tmp_path / "gradsync.sock"), model)
    assert same(train(model, gst.clip_grad_norm_), expected)
    assert observer.skipped == 4
    assert gst.last_report() is None
    assert len([r for r in caplog.records if "observe" in r.message]) == 1
    assert observer.explain() == {}


def test_a_daemon_that_dies_disturbs_nobody(daemon: Any, norms: Norms) -> None:
    expected = train(net(), nn.utils.clip_grad_norm_)
    model = net()
    observer = init(daemon.path, model)
    first_step = iter([True])

    def clip(parameters: Any, max_norm: float) -> torch.Tensor:
        norm = gst.clip_grad_norm_(parameters, max_norm)
        if next(first_step, False):
            observer.wait(PATIENT_S)
            hurry(observer)
            daemon.stop_listening()
        return norm

    assert same(train(model, clip), expected)
    daemon.listen()  # for the fixture


def test_a_daemon_that_answers_no_more_is_waited_for_once(daemon: Any, norms: Norms) -> None:
    answer = norms.step_finish
    going = threading.Event()

    def finish(params: dict[str, Any]) -> Any:
        assert going.wait(PATIENT_S)
        return answer(params)

    daemon.script["step.finish"] = finish
    expected = train(net(), nn.utils.clip_grad_norm_, steps=8)
    model = net()
    observer = init(daemon.path, model)
    hurry(observer)
    waits: list[float] = []
    inner = observer._grads.collect
    observer._grads.collect = lambda underway, patience: (waits.append(patience), inner(underway, patience))[1]
    assert same(train(model, gst.clip_grad_norm_, steps=8), expected)
    assert observer.skipped == 7
    assert waits == [PATIENCE_S] + [0.0] * 6  # once in vain
    going.set()
    assert observer.wait(PATIENT_S).report.step == 0
    backward(model)
    gst.observe()
    assert observer.wait(PATIENT_S).report.step == 8


def fail_once(daemon: Any, norms: Norms, kind: str) -> None:
    from fake_daemon import Fault

    def fail(params: dict[str, Any]) -> Any:
        daemon.script["step.finish"] = norms.step_finish
        raise Fault(kind, epoch=1, attempt=params["attempt"] + 1)

    daemon.script["step.finish"] = fail


def test_a_failed_step_is_the_last_of_its_troubles(daemon: Any, norms: Norms) -> None:
    fail_once(daemon, norms, "rank_lost")
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    for _ in range(2):
        gst.observe(1.0)
        observer.wait(PATIENT_S)
    assert observer.last.report.step == 1


def test_ranks_that_observed_different_steps_meet_again_at_one(daemon: Any, norms: Norms) -> None:
    fail_once(daemon, norms, "step_mismatch")
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    for _ in range(10):
        gst.observe(1.0)
        observer.wait(PATIENT_S)
    assert [params["step"] for params in daemon.of("step.finish")] == [0, 8, 9]
    assert observer.skipped == 7


def test_a_report_is_decoded_when_it_is_read(daemon: Any, norms: Norms, caplog: Any) -> None:
    answer = norms.step_finish
    daemon.script["step.finish"] = lambda params: {**answer(params), "timings": None}
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    gst.observe()
    assert observer.wait(PATIENT_S) is not None
    assert caplog.records == []
    assert gst.last_report() is None
    assert "cannot be read" in caplog.text


def test_a_report_without_a_norm_disturbs_nobody(daemon: Any, norms: Norms, caplog: Any) -> None:
    answer = norms.step_finish
    daemon.script["step.finish"] = lambda params: {**answer(params), "norm": None}
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    for _ in range(3):
        gst.observe(1.0)
        observer.wait(PATIENT_S)
    assert (observer.skipped, gst.last_report()) == (0, None)
    assert ["where a number belongs" in record.message for record in caplog.records] == [True]


def test_no_other_thread_wakes_up_for_the_result_of_a_step(
    daemon: Any,
    norms: Norms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_turns, "_LENT_S", 1000.0)  # steps that follow each other closely, on any machine
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    calls = observer._grads._job._channel._calls
    readers = []
    inner = calls.on_message
    calls.on_message = lambda message: (readers.append(threading.current_thread()), inner(message))[1]
    gst.observe()
    assert observer.wait(PATIENT_S) is not None  # the reader thread may have waited for it
    readers.clear()
    for _ in range(3):
        gst.observe()
        observer.wait(PATIENT_S)
    assert readers == [threading.current_thread()] * 3


def test_what_cannot_be_observed_is_said_and_nothing_else(daemon: Any, norms: Norms, caplog: Any) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    observer = init(daemon.path, model)
    for _ in range(3):
        model(torch.tensor([1])).sum().backward()
        gst.observe(1.0)
    assert observer.skipped == 3
    assert len([r for r in caplog.records if "sparse" in r.message]) == 1


def test_a_model_that_cannot_be_declared_is_clipped_all_the_same(caplog: Any) -> None:
    model = net()
    gst.init(model, mesh={"dp": 3}, job="j", rank=0, world_size=1)
    backward(model)
    assert gst.clip_grad_norm_(model.parameters(), 1.0) > 1
    assert any("nothing is observed" in r.message for r in caplog.records)
    gst.observe()


def test_observe_in_mode_clip_is_a_mistake(daemon: Any, norms: Norms) -> None:
    init(daemon.path, net(), mode="clip")
    with pytest.raises(UsageError, match="mode clip"):
        gst.observe(1.0)


def test_an_observer_goes_on_at_the_next_daemon(restartable_daemon: Any) -> None:
    model = net()
    observer = init(restartable_daemon.address, model)
    hurry(observer)
    backward(model)
    gst.observe(1.0)
    assert observer.wait(PATIENT_S).report.step == 0
    restartable_daemon._restart()
    end = time.monotonic() + PATIENT_S
    while observer.report.step == 0 and time.monotonic() < end:
        backward(model)
        gst.observe(1.0)
    assert observer.report.step > 0


@pytest.mark.long
def test_a_stopped_daemon_changes_no_bit(restartable_daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(net(), nn.utils.clip_grad_norm_)
    model = net()
    observer = init(restartable_daemon.address, model)
    calls = 0

    def clip(parameters: Any, max_norm: float) -> torch.Tensor:
        nonlocal calls
        norm = gst.clip_grad_norm_(parameters, max_norm)
        calls += 1
        if calls == 1:
            assert abs(observer.wait(PATIENT_S).relative_difference) < 1e-6
            hurry(observer)
            restartable_daemon._process.send_signal(signal.SIGSTOP)
            os.waitpid(restartable_daemon._process.pid, os.WUNTRACED)
            monkeypatch.setattr(_connection, "_CLOSE_S", 0.1)  # there is no answer to be patient for
            monkeypatch.setattr(_rank_session, "PATIENCE_S", 0.1)
            monkeypatch.setattr(_job, "QUICK_S", 0.1)
            monkeypatch.setattr(_handshake, "_SHORTEST_S", 0.1)
        return norm

    assert same(train(model, clip), expected)
    assert observer.skipped == 2  # the second step was handed over, and has no answer
    assert gst.last_report().step == 0
    gst.close()
    again = init(restartable_daemon.address, model)
    backward(model)
    gst.observe(1.0)
    assert (again.skipped, gst.last_report()) == (1, None)
    gst.close()
    restartable_daemon._process.send_signal(signal.SIGCONT)
