"""`gradsync observe` on training scripts in real processes over Gloo; observe_scripts.py has the scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from daemon import BINARY, clean_environment
from observe_scripts import STEPS
from observed import AUDITED, DEADLINE_S, PATIENT, SCRIPTS, Run, ranks


def one(name: str) -> list[str]:
    return [sys.executable, SCRIPTS, name]


def check_all_is_well(run: Run, steps: int = STEPS) -> None:
    assert run.code == 0, run.said
    assert run.summary["steps"] == steps
    assert run.summary["skipped"] == 0
    assert run.summary["findings"] == {}
    assert run.summary["notes"] == []
    assert run.warnings == []
    assert [line["step"] for line in run.lines] == list(range(steps))
    assert all(abs(line["relative_difference"]) < 1e-6 and line["findings"] == [] for line in run.lines)


def digests(folder: Path) -> list[str]:
    return [(folder / f"rank-{number}").read_text() for number in range(2)]


def digests_without(tmp_path: Path, name: str) -> list[str]:
    """What the script writes when it is not observed."""
    folder = tmp_path / "alone"
    folder.mkdir()
    alone = clean_environment(WRITE_TO=str(folder), OMP_NUM_THREADS="1")
    subprocess.run(ranks(name), env=alone, timeout=DEADLINE_S, check=True)
    return digests(folder)


@pytest.mark.training
def test_ddp_under_torchrun_is_observed_without_a_line_of_code(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = Run(tmp_path, *torchrun, SCRIPTS, "plain", WRITE_TO=str(tmp_path))
    check_all_is_well(run)
    assert (run.summary["ranks"], run.summary["tensors"]) == (2, 6)
    assert "6 steps observed, 2 of 2 ranks, 6 tensors" in run.printed
    assert "within the 0.002 % that rounding explains" in run.printed
    assert digests(tmp_path) == digests_without(tmp_path, "plain")


@pytest.mark.parametrize("name", ["accumulates", pytest.param("has_a_line_of_its_own", marks=pytest.mark.training)])
def test_right_scripts_are_observed_in_every_step_and_nothing_is_said(tmp_path: Path, name: str) -> None:
    check_all_is_well(Run(tmp_path, *ranks(name), options=(*PATIENT, "--strict")))


@pytest.mark.training
def test_the_norm_of_shards_is_compared_without_a_collective(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("fsdp2", script=AUDITED))
    assert (run.code, run.warnings) == (0, []), run.said
    assert len(run.lines) >= 2
    assert all(abs(line["relative_difference"]) < 1e-6 for line in run.lines)


@pytest.mark.training
def test_a_pipeline_by_hand_is_observed_where_it_is_told(tmp_path: Path) -> None:
    for folder in ("untold", "told"):
        (tmp_path / folder).mkdir()
    untold = Run(tmp_path / "untold", *ranks("pipeline_that_forgets_pp", script=AUDITED))
    assert (untold.code, untold.summary["steps"]) == (0, 0)
    assert "'0.weight'" in untold.summary["notes"][0]
    assert "--mesh, --pp" in untold.summary["notes"][0]
    mesh = (*PATIENT, "--mesh", "pp=2", "--pp", "pp")
    told = Run(tmp_path / "told", *ranks("pipeline_that_forgets_pp", script=AUDITED), options=mesh)
    assert told.summary["findings"]["difference"]["first"] == 0, told.said


@pytest.mark.rare
@pytest.mark.training
def test_what_one_rank_leaves_out_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("rank_one_leaves_out_the_head", script=AUDITED))
    assert "'lm_head.weight' (not rank 1)" in run.summary["findings"]["missing"]["text"], run.said


@pytest.mark.training
def test_each_optimizers_call_is_a_step_of_its_own_tensors(tmp_path: Path) -> None:
    run = Run(tmp_path, *one("two_optimizers"), options=(*PATIENT, "--strict"))
    check_all_is_well(run, 2 * STEPS)
    assert run.summary["tensors"] == 12


@pytest.mark.rare
@pytest.mark.training
def test_a_script_that_multiplies_by_itself_is_observed_from_its_second_step(tmp_path: Path) -> None:
    check_all_is_well(Run(tmp_path, *ranks("only_takes_norms")), STEPS - 1)


@pytest.mark.training
def test_a_wrong_norm_is_a_warning_and_stands_in_the_summary(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("sums_over_dp_again"))
    assert run.code == 0, run.said  # without --strict
    assert sum("step 2: the framework's norm is " in text and "(+41.4 %" in text for text in run.warnings) == 2
    assert [line["step"] for line in run.lines if line["findings"] == ["difference"]] == [2, 3]
    found = run.summary["findings"]["difference"]
    assert (found["count"], found["first"], found["last"]) == (2, 2, 3)
    assert run.summary["largest_difference"]["relative"] == pytest.approx(2**0.5 - 1, rel=1e-5)
    assert run.summary["largest_difference"]["step"] in (2, 3)
    assert "gradsync audit" in run.summary["next"]
    assert "a norm that differs" in run.printed


def test_a_nan_that_one_replica_has_is_named_in_its_step(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("nan_on_rank_one"), options=(*PATIENT, "--strict"))
    assert run.code == 1, run.said
    found = run.summary["findings"]["nonfinite"]
    assert found["first"] == 2  # the fourth step of the script; its first one is not clipped
    assert "'module.2.bias' (1 values, rank 1)" in found["text"]
    assert run.lines[2]["norm"] == "NaN"
    assert "divergence" in run.summary["findings"]


@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "code"), [pytest.param("unscales", 0, marks=pytest.mark.rare), ("forgets_unscale", 1)]
)
def test_a_clip_of_scaled_gradients_is_said_once(tmp_path: Path, name: str, code: int) -> None:
    run = Run(tmp_path, *one(name), options=(*PATIENT, "--strict"))
    assert run.code == code, run.said
    assert len(run.lines) == STEPS
    assert len(run.warnings) == code
    found = run.summary["findings"].get("still_scaled")
    assert (found is None) == (code == 0)
    assert found is None or (found["count"] == STEPS and "scaler.unscale_(optimizer)" in found["text"])


@pytest.mark.long
def test_a_daemon_that_is_killed_changes_no_bit_and_ends_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("kills_the_daemon"), options=(), WRITE_TO=str(tmp_path))
    assert run.code == 0, run.said
    assert run.summary["steps"] < 12
    assert run.summary["skipped"] > 0
    assert run.summary["notes"]
    assert digests(tmp_path) == digests_without(tmp_path, "kills_the_daemon")


@pytest.mark.rare
@pytest.mark.training
def test_a_script_that_fails_keeps_its_code_and_what_was_seen(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("raises_on_rank_one"))
    assert run.code == 1, run.said
    assert run.summary["steps"] == 4
    assert "rank 1: ZeroDivisionError: no batch is left, at " in run.summary["command"]
    assert run.summary["next"] == "mend the command first"


@pytest.mark.rare
@pytest.mark.training
def test_a_script_that_gradsync_clips_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path, *ranks("clips_by_gradsync"), options=(*PATIENT, "--strict"))
    assert run.code == 2, run.said
    assert "mode clip" in run.summary["notes"][0]


def test_a_command_that_does_not_clip(tmp_path: Path) -> None:
    run = Run(tmp_path, sys.executable, "-c", "print('no torch here')", options=("--strict",))
    assert run.code == 2
    assert "no torch here" in run.printed
    assert "no process called a clip function of torch" in run.printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "gradsync observe needs a command"),
        (("train.py",), "the command comes after --: gradsync observe"),
        (("--patience", "-1", "--", "true"), "give seconds from 0 to 3600"),
        (("--jsonl", "/nonexistent/lines", "--", "true"), "--jsonl /nonexistent/lines: it cannot be written"),
        (("--", "/nonexistent/command"), "'/nonexistent/command' cannot be run"),
    ],
)
def test_wrong_arguments_say_what_is_right(options: tuple[str, ...], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradsync", "observe", *options],
        env=clean_environment(GRADSYNCD=BINARY),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
