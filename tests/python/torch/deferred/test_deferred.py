"""`defer=True`: clips that return before their coefficient is known, on an emulated stream that really waits."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drop_ins import Norms, backward, copies, init, net
from emulated import Stream, begin, clip, same_bits
from fake_daemon import NO_REPLY, Fault
from torch import nn

import gradsync
import gradsync.torch as gst
from gradsync.errors import StepFailed
from gradsync.torch import DeferredClipFailed
from gradsync.torch._reduced import _deferral

WAIT_S = 60.0


class Held(Norms):
    """Answers once `let` is set: until then the stream waits, and the fake answers nothing else."""

    def __init__(self, daemon: Any) -> None:
        super().__init__(daemon)
        self.let = threading.Event()
        self.asked = threading.Event()
        self.fault: Fault | None = None
        self.more: dict[str, Any] = {}

    def step_finish(self, params: dict[str, Any]) -> Any:
        self.asked.set()
        assert self.let.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        return super().step_finish(params) | self.more


@pytest.fixture
def held(daemon: Any) -> Iterator[Held]:
    one = Held(daemon)
    yield one
    one.let.set()


def are_zero(model: nn.Module) -> bool:
    return all(not one.any() for one in copies(model))


def random_step(model: nn.Module, seed: int, step: int) -> None:
    """Gradients of one step; some are None, and in one step some are NaN."""
    torch.manual_seed(100 * seed + step)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.randn_like(parameter) * 10.0 ** (step - 2)
        if torch.rand(()) < 0.2:
            parameter.grad = None
        elif step == 3 and number % 2:
            parameter.grad.view(-1)[-1] = math.nan


@pytest.mark.usefixtures("norms")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_bits_norms_and_reports_are_those_of_a_clip_that_waits(
    daemon: Any,
    stream: Stream,
    dtype: torch.dtype,
) -> None:
    def run(seed: int, **options: Any) -> list[Any]:
        model, found = net(dtype), []
        init(daemon, model, **({"weights_every": 0} | options))
        for step in range(6):
            random_step(model, seed, step)
            norm = clip(
                model, [0.0, 0.5, 1.0, math.inf, 1e9, 0.1][step], norm_type=[2.0, 2.0, 3.0, 3.0, 1.0, math.inf][step]
            )
            report = gst.last_report()
            stream.wait()
            found.append((copies(model), norm.dtype, norm.shape, norm.reshape(1), report.step, report.coefficient))
        gst.close()
        return found

    for seed in range(5):
        for ours, theirs in zip(run(seed, defer=True), run(seed), strict=True):
            assert same_bits(ours[0], theirs[0])
            assert ours[1:3] == theirs[1:3]
            assert same_bits([ours[3]], [theirs[3]])
            assert str(ours[4:]) == str(theirs[4:])  # NaN is not equal to itself


def test_the_trainers_thread_does_not_wait(daemon: Any, held: Held, stream: Stream) -> None:
    model = net()
    begin(daemon, model)
    backward(model)
    before = copies(model)
    norm = clip(model)
    assert held.asked.wait(WAIT_S)
    assert not held.let.is_set()  # it came back although the daemon has not answered
    assert same_bits(copies(model), before)
    held.let.set()
    report = gst.last_report()  # which waits
    stream.wait()
    assert norm.item() == report.norm > 0.5
    wanted = [one * torch.tensor(report.coefficient, dtype=torch.float32) for one in before]
    assert same_bits(copies(model), wanted)


def test_the_next_clip_waits_for_the_one_before(daemon: Any, held: Held, stream: Stream) -> None:
    model = net()
    begin(daemon, model)
    backward(model)
    clip(model)
    after = threading.Thread(target=clip, args=(model,), daemon=True)
    after.start()
    assert held.asked.wait(WAIT_S)
    assert after.is_alive()
    held.let.set()
    after.join(WAIT_S)
    assert not after.is_alive()
    assert gst.last_report().step == 1
    stream.wait()


def test_zeros_of_a_policy_take_the_place_of_nan(daemon: Any, held: Held, stream: Stream) -> None:
    group = gradsync_group(action="zero", coefficient=0)
    held.more = {"coefficient": 0, "groups": [group]}
    held.let.set()
    model = net()
    begin(daemon, model, clip=gradsync.Clip(nonfinite="zero"))
    backward(model)
    next(model.parameters()).grad[0] = math.nan  # type: ignore[index]
    clip(model)
    gst.last_report()
    stream.wait()
    assert are_zero(model)


def gradsync_group(**more: Any) -> dict[str, Any]:
    group = {"name": "all", "norm": "NaN", "threshold": 0.5, "coefficient": 1, "clipped": False, "reason": "scripted"}
    return group | more


class TestFailures:
    def test_an_error_leaves_zeros_and_is_raised_once_by_the_next_clip(
        self,
        daemon: Any,
        held: Held,
        stream: Stream,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        held.fault = Fault("step_failed", "a scripted end")
        held.let.set()
        model = net()
        begin(daemon, model)
        backward(model)
        next(model.parameters()).grad[0] = math.inf  # type: ignore[index]
        norm = clip(model)
        stream.wait()
        assert are_zero(model)
        assert math.isnan(norm.item())
        backward(model)
        before = copies(model)
        with pytest.raises(
            DeferredClipFailed, match=r"step 0 failed after its clip .*a scripted end.*checkpoint"
        ) as found:
            clip(model)
        assert isinstance(found.value.__cause__, StepFailed)
        assert found.value.step == 0
        assert same_bits(copies(model), before)
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "step 0 failed after its clip had returned (defer=True)" in record.message
        held.fault = None
        clip(model)
        assert gst.last_report().coefficient < 1
        stream.wait()

    @pytest.mark.parametrize("how", ["close", "last_report", "state_dict", "verify_weights", "explain", "init"])
    def test_whatever_comes_next_raises_it(self, daemon: Any, held: Held, stream: Stream, how: str) -> None:
        held.fault = Fault("step_failed")
        held.let.set()
        model = net()
        session = begin(daemon, model)
        backward(model)
        clip(model)
        call = {
            "close": gst.close,
            "last_report": gst.last_report,
            "state_dict": session.state_dict,
            "verify_weights": gst.verify_weights,
            "explain": session.explain,
            "init": lambda: begin(daemon, net()),
        }[how]
        with pytest.raises(DeferredClipFailed):
            call()
        if how == "close":
            assert daemon.of("job.detach")
        stream.wait()
        assert are_zero(model)

    def test_a_close_waits_for_the_step_in_flight(self, daemon: Any, held: Held, stream: Stream) -> None:
        model = net()
        begin(daemon, model)
        backward(model)
        clip(model)
        assert held.asked.wait(WAIT_S)
        closing = threading.Thread(target=gst.close, daemon=True)
        closing.start()
        assert closing.is_alive()
        held.let.set()
        closing.join(WAIT_S)
        assert not closing.is_alive()
        stream.wait()
        assert not are_zero(model)
        assert daemon.of("job.detach")

    def test_a_daemon_that_is_gone_releases_the_stream_within_the_deadline(
        self,
        daemon: Any,
        stream: Stream,
    ) -> None:
        limits = {"limits": {"step_s": 1.0, "first_step_s": 1.0}}
        daemon.script["session.initialize"] = lambda params: daemon.on_session_initialize(params) | limits
        daemon.script["step.finish"] = lambda params: NO_REPLY
        model = net()
        begin(daemon, model)
        backward(model)
        clip(model)
        (asked,) = daemon.wait_for("step.finish")
        assert asked["timeout_ms"] == 1000
        began = time.monotonic()
        daemon.stop_listening()
        stream.wait()
        assert time.monotonic() - began < 8  # the thread of the gate would have released it after 11 s
        assert are_zero(model)
        daemon.listen()
        with pytest.raises(DeferredClipFailed):
            gst.last_report()

    def test_a_thread_that_keeps_the_interpreter_while_it_waits_gets_zeros(
        self,
        daemon: Any,
        held: Held,
        stream: Stream,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """No thread of Python can release the stream then, so that of the gate does."""
        monkeypatch.setattr(_deferral, "_MARGIN_S", -1799.0)  # of the 1800 s of a first step
        model = net()
        begin(daemon, model)
        backward(model)
        norm = clip(model)
        assert held.asked.wait(WAIT_S)
        stream.wait(holding_the_interpreter=True)
        assert are_zero(model)
        assert math.isnan(norm.item())
        held.let.set()
        with pytest.raises(DeferredClipFailed, match="its coefficient came after the stream had been released"):
            gst.last_report()
