"""Mode observe speaks: one line when something begins to be wrong, one when it is over, and none while all is well."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from drop_ins import Norms, backward, net
from fake_daemon import report
from observers import PATIENT_S, init, observing  # noqa: F401  a fixture
from torch import nn

import gradsync
import gradsync.torch as gst
from gradsync import Clip, StepReport, ZScore
from gradsync._step._reduced import Answer
from gradsync._step._report import decode_report
from gradsync.torch._joining import JoinOptions
from gradsync.torch._reduced._conditions import Conditions
from gradsync.torch._reduced._init import _observe
from gradsync.torch._reduced._options import InitOptions

OPTIONS = InitOptions(
    divergence="report",
    weights_every=0,
    sharded=(),
    mesh=None,
    join=JoinOptions(None, None, None, None, None),
    pp=None,
    ep=(),
    tied=(),
    layer=None,
    clip=None,
    norm_type=2.0,
    check_weights=True,
    timeout=None,
    defer=False,
)


def norm_of(model: nn.Module) -> torch.Tensor:
    return torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all((record.name, record.levelname) == ("gradsync", "WARNING") for record in caplog.records)
    return [record.message.removeprefix("gradsync observe: rank 0: ") for record in caplog.records]


# one rank, on daemons


def test_a_norm_that_differs_is_said_when_it_begins_and_when_it_is_over(
    daemon: Any,
    norms: Norms,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = net()
    observer = init(daemon.path, model)
    backward(model)
    norm = norm_of(model)
    for step in range(40):
        gst.observe(norm * 1.41 if 5 <= step < 9 else norm)
        observer.wait(PATIENT_S)
        if step == 5:
            assert len(caplog.records) == 1
            seen = gst.last_report()
            assert seen.theirs == pytest.approx(1.41 * norm.item())
            assert seen.relative_difference == pytest.approx(0.41, rel=1e-5)
    assert gst.last_report().relative_difference == pytest.approx(0, abs=1e-6)
    begin, end = said(caplog)
    assert begin.startswith(f"step 5: the framework's norm is {1.41 * norm:.6g}, and that of the gradients {norm:.6g}")
    assert "(+41 %, where rounding explains 0.0" in begin
    assert "gradsync audit" in begin
    assert end == "over: a framework's norm that differs, seen in 4 of the steps 5 to 8"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_right_to_within_rounding_is_not_said(
    real_daemon: str, caplog: pytest.LogCaptureFixture, dtype: torch.dtype
) -> None:
    model = net(dtype)
    observer = init(real_daemon, model, job=f"right-{dtype}")
    for _ in range(4):
        model.zero_grad()
        backward(model)
        gst.clip_grad_norm_(model.parameters(), 0.5)
        observer.wait(PATIENT_S)
    observer.close()
    assert observer.last.relative_difference is not None
    assert caplog.records == []


def test_a_norm_of_another_order_is_not_compared(daemon: Any, norms: Norms, caplog: Any) -> None:
    model = net()
    observer = init(daemon.path, model)
    for _ in range(3):
        backward(model)
        gst.clip_grad_norm_(model.parameters(), 0.5, math.inf)
        assert observer.wait(PATIENT_S).theirs is None
    assert ["init(norm_type=inf)" in record.message for record in caplog.records] == [True]


def test_gradients_dropped_before_they_were_observed(real_daemon: str, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    observer = init(real_daemon, model, job="dropped")
    for _ in range(3):
        gst.observe(9.07)
        assert observer.wait(PATIENT_S).report.norm == 0
    difference, absent = said(caplog)
    assert "step 0: the framework's norm is 9.07, and there was no gradient to compare it with" in difference
    assert "no rank has one of 4 tensors ('0.weight', '0.bias', '2.weight'" in difference
    assert absent.startswith("step 0: no rank has a gradient of 4 tensors: '0.weight'")
    assert gst.last_report().relative_difference is None
    observer.close()
    assert [text.partition(":")[0] for text in said(caplog)[2:]] == ["not over when the observation ended"] * 2


def test_nan_has_the_name_of_its_tensor_and_rank(real_daemon: str, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    observer = init(real_daemon, model, job="nan")
    backward(model)
    for step in range(14):
        model[2].bias.grad[0] = math.nan if step == 1 else 1.0
        gst.observe(norm_of(model))
        observer.wait(PATIENT_S)
    begin, end = said(caplog)
    assert begin == "step 1: NaN or infinity in the gradients of 1 tensors: '2.bias' (1 values, rank 0)"
    assert end == "over: NaN or infinity, seen in 1 of the steps 1 to 1"


def test_a_spike_of_a_policy_that_watches(real_daemon: str, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    observer = init(real_daemon, model, job="spike", clip=Clip.observe(ZScore(warmup=8)))
    for step in range(32):
        model.zero_grad()
        backward(model, 1e4 if step == 20 else 10.0 + step % 3)
        gst.observe(norm_of(model))
        observer.wait(PATIENT_S)
    begin, end = said(caplog)
    assert begin.startswith("step 20: the norm ")
    assert " is a spike: " in begin
    assert end == "over: spikes, seen in 1 of the steps 20 to 20"


def test_a_script_with_torchs_own_clip_is_told_that_nothing_is_observed(
    daemon: Any,
    norms: Norms,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = net()
    init(daemon.path, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    elsewhere = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.01)
    for step in range(6):
        for _ in range(4):
            elsewhere.step()
        backward(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert len(caplog.records) == (step > 2)
        optimizer.step()
    assert ["nothing was observed in 3 steps of SGD" in record.message for record in caplog.records] == [True]


def test_two_ranks_say_what_is_theirs(real_daemon: str, caplog: pytest.LogCaptureFixture) -> None:
    """On rank 1 one gradient is another, one is left out, and so the framework's own norm differs."""

    def observe(rank: int) -> None:
        with gradsync.connect(real_daemon) as client:
            join = JoinOptions("two", rank, 2, client, None)
            made = net_of_all if rank == 0 else net_of_one
            observer = _observe(made, replace(OPTIONS, join=join))
            for _ in range(2):
                observer.observe(norm_of_all * (1 if rank == 0 else 3))
                found[rank] = observer.wait(PATIENT_S)
            observer.close()

    net_of_all, net_of_one = net(), net()
    for model in (net_of_all, net_of_one):
        backward(model)
    norm_of_all = norm_of(net_of_all)
    net_of_one[0].weight.grad[0, 0] += 1.0
    net_of_one[2].bias.grad = None
    found: list[Any] = [None, None]
    threads = [threading.Thread(target=observe, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    begins = [record.message for record in caplog.records if ": step 0: " in record.message]
    assert sorted(text.split("step 0: ")[0] for text in begins) == [
        "gradsync observe: rank 0: ",
        "gradsync observe: rank 0: ",
        "gradsync observe: rank 1: ",
    ]
    assert any("copies differ in 1 tensors: '0.weight' between ranks 0, 1" in text for text in begins)
    assert any("only some ranks have a gradient of 1 tensors: '2.bias' (not rank 1)" in text for text in begins)
    assert any("rank 1: step 0: the framework's norm is" in text and "(+200 %" in text for text in begins)
    assert len([record for record in caplog.records if "not over when" in record.message]) == 3
    assert found[0].report == replace(found[1].report, theirs=found[0].theirs)


# many steps, without a daemon


def play(steps: list[dict[str, Any]], rank: int = 0, theirs: float = 2.0, checked: bool = True) -> list[str]:
    lines: list[str] = []
    conditions = Conditions(rank, lines.append)
    for step, fields in enumerate(steps):
        wire = report(step, **fields)

        def decode(wire: dict[str, Any] = wire) -> StepReport:
            return replace(decode_report(wire, "t{}".format), theirs=theirs)

        conditions.see(Answer(wire, "t{}".format), step, theirs, 1e-5, checked, decode)
    return lines


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (
        {"missing": [{"tensor": f"e.{i}", "ranks": [1, i]} for i in range(2, 7)]},
        "only some ranks have a gradient of 5 tensors: 'e.2' (not ranks 1, 2), 'e.3' (not ranks 1, 3), "
        "'e.4' (not ranks 1, 4) and 2 more",
    ),
    "divergence": (
        {"divergence": [{"tensor": "w", "ranks": [3]}]},
        "gradients that should be copies differ in 1 tensors: 'w' on rank 3",
    ),
    "absent": ({"absent": [4]}, "no rank has a gradient of 1 tensors: 't4'"),
    "overflow": ({"norm": "Infinity"}, "the norm is inf, although every gradient is finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rank_0_says_what_all_ranks_know(name: str) -> None:
    fields, text = WRONG[name]
    steps: list[dict[str, Any]] = [{}, fields, fields, *[{}] * 12]
    theirs = math.nan if name == "overflow" else 2.0
    begin, end = play(steps[1:3], theirs=theirs) + play(steps)[-1:]
    assert begin == f"step 0: {text}"
    assert end.startswith("over: ")
    assert end.endswith("seen in 2 of the steps 1 to 2")
    assert play(steps[1:3], rank=1, theirs=theirs) == []


def test_a_difference_is_said_by_the_rank_that_has_it() -> None:
    assert len(play([{}, {}], rank=3, theirs=2.5)) == 1
    assert play([{"norm": "NaN"}], rank=3, theirs=math.inf) == []
    assert "is nan, and that of the gradients 2;" in play([{}], rank=3, theirs=math.nan)[0]


def test_what_comes_and_goes_is_said_ever_less_often() -> None:
    flaps = play([{"absent": [0]} if step % 15 == 0 else {} for step in range(3000)])
    assert len(flaps) == 3  # it began, was over, began again, and 20 steps without it never came
    rarely = play([{"absent": [0]} if step % 300 == 0 else {} for step in range(30_000)])
    assert len(rarely) == 11
    assert len(play([{"absent": [0]}] * 1000)) == 1


def test_bits_that_were_not_compared_end_no_divergence() -> None:
    wrong = WRONG["divergence"][0]
    assert len(play([wrong, *[{}] * 50], checked=False)) == 1
    assert len(play([wrong, {}])) == 2


def test_clipping_that_would_not_be_healthy(real_daemon: str, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    clip = Clip.percentile(ceiling=1e-9, window=100, warmup=10)
    observer = init(real_daemon, model, job="ill", clip=clip)

    def observe(steps: int) -> None:
        for _ in range(steps):
            model.zero_grad(set_to_none=False)
            backward(model)
            gst.observe(norm_of(model))
            observer.wait(PATIENT_S)

    observe(199)
    assert said(caplog) == [], "in the first window some steps came before the percentile was warm"
    observe(1)
    wait_for_lines(caplog, 1)
    with gradsync.connect(real_daemon) as client:
        (job,) = [job for job in client.call("status.get")["jobs"] if job["job"] == "ill"]
    decides, watches = job["clip"]
    assert (decides["policy"], decides["watches"], decides["signs"]) == ("observe", False, [])
    assert watches["policy"] == "percentile 95, window 100, warmup 10"
    assert (watches["steps"], watches["clip_rate"], watches["threshold"]) == (100, 1.0, 1e-9)
    assert watches["signs"] == ["max_norm decided in 100 of 100 steps, and 100 % were clipped: norms are above it"]

    for parameter in model.parameters():
        parameter.grad.zero_()
    for _ in range(100):  # at last the percentile of the norms is 0, which is no threshold
        gst.observe(0.0)
        observer.wait(PATIENT_S)
    wait_for_lines(caplog, 2)
    begin, end = said(caplog)
    assert begin == (
        "step 199, clip group 'all', percentile 95, window 100, warmup 10 (watches): max_norm decided in 100 of 100 "
        "steps, and 100 % were clipped: norms are above it"
    )
    assert end.startswith("over: step 299, clip group 'all', percentile 95")


def wait_for_lines(caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Alerts come in their own time, on the connection's thread."""
    end = time.monotonic() + PATIENT_S
    while len(caplog.records) < count and time.monotonic() < end:
        time.sleep(0.01)
    assert len(caplog.records) == count
