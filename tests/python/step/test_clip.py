"""Clip settings and policies: what is sent, what is refused, and what a training configuration means."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from fake_daemon import FakeDaemon, report

import gradsync
from gradsync import Clip, Fixed, Observe, Percentile, Tensor, ZScore
from gradsync.errors import ClipRaised, UsageError

WATCH = {
    "policy": "zscore 2.5, alpha 0.97, warmup 25",
    "threshold": "Infinity",
    "coefficient": 1,
    "clipped": False,
    "action": "step",
    "spike": False,
    "reason": "no max_norm: measured only",
}


def sent(job: gradsync.Job, daemon: FakeDaemon, clip: Any) -> Any:
    job.declare([Tensor("w", (1,))], clip=clip)
    return daemon.of("gradients.declare")[-1]["options"]["clip"]


def test_plain_settings_are_sent_as_older_daemons_know_them(job: gradsync.Job, daemon: FakeDaemon) -> None:
    assert sent(job, daemon, Clip(max_norm=1.5)) == [{"group": "all", "max_norm": 1.5, "zero_rule": "refuse"}]


def test_policies_and_actions_are_sent(job: gradsync.Job, daemon: FakeDaemon) -> None:
    clips = {
        "a": Clip.percentile(2, 90, 500, 50, nonfinite="skip", watch=[ZScore(), Observe(), Fixed()]),
        "b": Clip.zscore(None, 3, 0.9, 10, spike="raise", spike_factor=4),
        "c": Clip.observe(Percentile(), ceiling=0.5, nonfinite="raise"),
    }
    assert sent(job, daemon, clips) == [
        {
            "group": "a",
            "max_norm": 2,
            "zero_rule": "refuse",
            "policy": {"kind": "percentile", "percentile": 90, "window": 500, "warmup": 50},
            "nonfinite": "skip",
            "watch": [
                {"kind": "zscore", "z": 2.5, "alpha": 0.97, "warmup": 25},
                {"kind": "observe"},
                {"kind": "fixed"},
            ],
        },
        {
            "group": "b",
            "max_norm": None,
            "zero_rule": "refuse",
            "policy": {"kind": "zscore", "z": 3, "alpha": 0.9, "warmup": 10},
            "spike": "raise",
            "spike_factor": 4,
        },
        {
            "group": "c",
            "max_norm": 0.5,
            "zero_rule": "refuse",
            "policy": {"kind": "observe"},
            "nonfinite": "raise",
            "watch": [{"kind": "percentile", "percentile": 95.0, "window": 1000, "warmup": 100}],
        },
    ]


def test_the_usual_numbers_are_those_of_the_sources() -> None:
    assert Clip.percentile() == Clip(max_norm=1.0, policy=Percentile(percentile=95, window=1000, warmup=100))
    assert Clip.zscore() == Clip(max_norm=1.0, policy=ZScore(z=2.5, alpha=0.97, warmup=25))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Percentile(percentile=0), "percentile=0"),
        (lambda: Percentile(percentile=100.5), "percentile=100.5"),
        (lambda: Percentile(percentile=math.nan), "percentile=nan"),
        (lambda: Percentile(percentile="95"), "percentile='95'"),
        (lambda: Percentile(window=50), "warmup=100"),
        (lambda: Percentile(window=0, warmup=0), "window=0"),
        (lambda: Percentile(window=100_001), "window=100001"),
        (lambda: Percentile(window=1000.0), "window=1000.0"),
        (lambda: Percentile(warmup=0), "warmup=0"),
        (lambda: ZScore(z=0), "z=0"),
        (lambda: ZScore(z=math.inf), "z=inf"),
        (lambda: ZScore(alpha=1), "alpha=1"),
        (lambda: ZScore(alpha=math.nan), "alpha=nan"),
        (lambda: ZScore(warmup=1), "warmup=1"),
        (lambda: ZScore(warmup=True), "warmup=True"),
        (lambda: Clip(max_norm=-1), "max_norm=-1"),
        (lambda: Clip(max_norm=math.nan), "max_norm=nan"),
        (lambda: Clip(max_norm=math.inf), "max_norm=inf"),
        (lambda: Clip(max_norm="1"), "max_norm='1'"),
        (lambda: Clip.percentile(math.nan), "max_norm=nan"),
        (lambda: Clip(spike_factor=1), "spike_factor=1"),
        (lambda: Clip(spike_factor=math.nan), "spike_factor=nan"),
        (lambda: Clip(nonfinite="ignore"), "nonfinite='ignore'"),
        (lambda: Clip(spike="zero"), "spike='zero'"),
        (lambda: Clip(policy="percentile"), "policy='percentile'"),
        (lambda: Clip(policy=Percentile), "policy=<class"),
        (lambda: Clip(watch=Percentile()), r"watch=Percentile\("),
        (lambda: Clip(watch=[Fixed(), "zscore"]), r"watch\[1\]='zscore'"),
        (lambda: Clip(watch=[Fixed()] * 9), "9 policies, at most 8"),
    ],
)
def test_nonsense_is_refused_by_field_and_value(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_a_percentile_of_100_and_a_warm_up_as_long_as_the_window_are_legal() -> None:
    assert Clip.percentile(percentile=100, window=1, warmup=1).policy == Percentile(percentile=100, window=1, warmup=1)
    assert len(Clip(watch=[Fixed()] * 8).watch) == 8


# training configurations


@pytest.mark.parametrize(
    ("config", "clip"),
    [
        ({}, Clip.percentile()),
        ({"grad_clip_norm": 1.0, "auto_grad_clip": True, "grad_clip_percentile": 95.0}, Clip.percentile()),
        ({"grad_clip_norm": 2, "grad_clip_percentile": 90}, Clip.percentile(2.0, 90.0)),
        ({"auto_grad_clip": False}, Clip(max_norm=1.0)),
        ({"auto_grad_clip": False, "grad_clip_norm": 0.5}, Clip(max_norm=0.5)),
        ({"lr": "1e-3", "epochs": None, "grad_clip_norm": 100}, Clip.percentile(100.0)),
    ],
)
def test_a_training_configuration_becomes_settings(config: dict[str, Any], clip: Clip) -> None:
    assert Clip.from_config(config) == clip


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"grad_clip_norm": "1e-3"}, "grad_clip_norm = '1e-3': give a number, not a text"),
        ({"grad_clip_norm": None}, "grad_clip_norm = None"),
        ({"grad_clip_norm": True}, "grad_clip_norm = True"),
        ({"grad_clip_norm": 0}, "grad_clip_norm = 0.0"),
        ({"grad_clip_norm": -1}, "grad_clip_norm = -1"),
        ({"grad_clip_norm": math.nan}, "grad_clip_norm = nan"),
        ({"grad_clip_norm": math.inf}, "grad_clip_norm = inf"),
        ({"grad_clip_percentile": 0}, "grad_clip_percentile = 0"),
        ({"grad_clip_percentile": 101, "auto_grad_clip": False}, "grad_clip_percentile = 101"),
        ({"auto_grad_clip": "true"}, "auto_grad_clip = 'true'"),
        ({"auto_grad_clip": 1}, "auto_grad_clip = 1"),
        ({"grad_clip_norms": 1.0}, "grad_clip_norms is not a key"),
        ({"auto_grad_clipping": True}, "auto_grad_clipping is not a key"),
        ("grad_clip_norm", "give the table"),
    ],
)
def test_a_wrong_configuration_is_refused_by_key_and_value(config: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Clip.from_config(config)


# what comes back


def step(grads: gradsync.Grads) -> gradsync.StepReport:
    grads.ready("w")
    return grads.finish()


def answer(daemon: FakeDaemon, **fields: Any) -> None:
    def finish(params: dict[str, Any]) -> dict[str, Any]:
        daemon.attempt = params["attempt"] + 1
        group = report(0)["groups"][0] | {"action": fields["action"], "spike": False, "watch": [WATCH]}
        group |= {"norm": fields.get("norm", 2.0)}
        return report(params["step"], params["epoch"], params["attempt"], groups=[group], **fields)

    daemon.script["step.finish"] = finish


def test_a_report_has_actions_and_what_watching_policies_said(job: gradsync.Job, daemon: FakeDaemon) -> None:
    answer(daemon, action="skip", skipped=True)
    result = step(job.declare([Tensor("w", (1,))]))
    assert (result.action, result.skipped) == ("skip", True)
    group = result.groups[0]
    assert (group.action, group.spike) == ("skip", False)
    assert group.watch == (
        gradsync.WatchReport(
            policy="zscore 2.5, alpha 0.97, warmup 25",
            threshold=math.inf,
            coefficient=1.0,
            clipped=False,
            action="step",
            spike=False,
            reason="no max_norm: measured only",
        ),
    )


def test_an_older_daemon_says_nothing_of_actions(job: gradsync.Job) -> None:
    result = step(job.declare([Tensor("w", (1,))]))
    assert (result.action, result.groups[0].action, result.groups[0].spike, result.groups[0].watch) == (
        "step",
        "step",
        False,
        (),
    )


def test_a_step_that_raises_is_done_and_the_next_one_works(job: gradsync.Job, daemon: FakeDaemon) -> None:
    grads = job.declare([Tensor("w", (1,))], clip=Clip(nonfinite="raise"))
    found = [{"tensor": "w", "count": 1, "inputs": []}]
    answer(
        daemon,
        action="raise",
        decided_by="all",
        norm="NaN",
        reason="norm is not finite: nan",
        found_inf=True,
        nonfinite=found,
    )
    with pytest.raises(
        ClipRaised, match=r"step 0, clip group 'all': norm is not finite: nan \(tensors: 'w' \(arose in the sum\)\)"
    ) as caught:
        step(grads)
    assert (caught.value.group, caught.value.reason) == ("all", "norm is not finite: nan")
    assert caught.value.report.nonfinite[0].tensor == "w"
    assert (job.last_step, job.next_step, job.attempt) == (0, 1, 1)
    del daemon.script["step.finish"]
    assert step(grads).step == 1
    assert [params["attempt"] for params in daemon.of("step.finish")] == [0, 1]


def test_the_second_half_of_a_step_raises_and_the_first_does_not(job: gradsync.Job, daemon: FakeDaemon) -> None:
    grads = job.declare([Tensor("w", (1,))], clip=Clip(nonfinite="raise"))

    def raising(params: dict[str, Any]) -> dict[str, Any]:
        return report(params["step"], params["epoch"], params["attempt"], action="raise")

    daemon.script["norm.compute"] = daemon.script["clip.apply"] = raising
    grads.ready("w")
    assert grads.compute_norm().action == "raise"
    with pytest.raises(ClipRaised):
        grads.apply_clip()
    assert (job.last_step, job.attempt) == (0, 1)


def test_what_was_raised_survives_pickling(job: gradsync.Job, daemon: FakeDaemon) -> None:
    answer(daemon, action="raise", decided_by="all", norm="NaN")
    with pytest.raises(ClipRaised) as caught:
        step(job.declare([Tensor("w", (1,))]))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.group, copy.report.step) == (str(caught.value), "all", 0)


def test_settings_are_values() -> None:
    assert replace(Clip.percentile(), max_norm=2.0) == Clip.percentile(2.0)
    assert len({Clip.percentile(), Clip.percentile(), Clip.zscore()}) == 2
