"""`gradsync audit` on training scripts in real processes over Gloo; audit_scripts.py has the scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from audit_scripts import STEPS
from audits import DEADLINE_S, SCRIPTS, audit, ranks_of, whole
from daemon import BINARY, clean_environment


def one(name: str) -> list[str]:
    return [sys.executable, SCRIPTS, name]


@pytest.mark.training
def test_fsdp2_under_torchrun_agrees(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, said, found = audit(*torchrun, SCRIPTS, "fsdp2", json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert [(line["name"], line["tensors"]) for line in found["lines"][1:]] == [("over dp_shard", 6)]
    assert found["steps"] == STEPS
    assert found["ranks"] == 2
    assert not found["findings"]
    assert "whole model" in said


def test_ddp_agrees_and_no_bit_of_the_run_changes(tmp_path: Path) -> None:
    for folder in ("plain", "audited"):
        (tmp_path / folder).mkdir()
    plain = clean_environment(WRITE_TO=str(tmp_path / "plain"))
    subprocess.run(ranks_of(2, "ddp"), env=plain, timeout=DEADLINE_S, check=True)
    code, said, found = audit(
        *ranks_of(2, "ddp"), json_file=tmp_path / "verdict.json", WRITE_TO=str(tmp_path / "audited")
    )
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert found["lines"][1]["name"] == "copied to all ranks"
    for number in range(2):
        name = f"rank-{number}"
        assert (tmp_path / "plain" / name).read_text() == (tmp_path / "audited" / name).read_text()


@pytest.mark.long
def test_the_method_of_fsdp1_agrees(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "fsdp1"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert [(line["name"], line["verdict"]) for line in found["lines"]] == [
        ("whole model", "agrees"),
        ("over dp_shard", "agrees"),
    ]


@pytest.mark.training
def test_copies_that_nobody_reduced_are_named(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "copies_that_nobody_reduced"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["replicas_differ"]
    assert any("'0.weight'" in finding and "not reduced alike" in finding for finding in found["findings"])


@pytest.mark.long
def test_a_pipeline_by_hand_is_said_plainly_not_to_be_known() -> None:
    code, said, _ = audit(*ranks_of(2, "pipeline_that_forgets_pp"))
    assert code == 2
    assert "nothing could be audited" in said
    assert "gradsync.torch.audit(model" in said
    assert "--mesh pp=2" in said


@pytest.mark.training
def test_a_pipeline_on_a_device_mesh_needs_no_word(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "pipeline_on_a_device_mesh"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert whole(found)["tensors"] == 4  # two of one name are two


def check_the_forgotten_pipeline(found: dict[str, Any]) -> None:
    line = whole(found)
    assert line["verdict"] == "differs"
    assert [(cause["kind"], cause["axis"]) for cause in line["causes"]] == [("axis_missing", "pp")]
    assert len(line["theirs"]) == 2
    assert any("ranks clip by different norms" in finding for finding in found["findings"])


@pytest.mark.training
def test_a_pipeline_that_forgets_pp_is_named_with_a_flag(tmp_path: Path) -> None:
    code, said, found = audit(
        *ranks_of(2, "pipeline_that_forgets_pp"), options=("--mesh", "pp=2"), json_file=tmp_path / "verdict.json"
    )
    assert code == 1, said
    check_the_forgotten_pipeline(found)


@pytest.mark.rare
@pytest.mark.training
def test_the_line_in_the_script_gives_the_same_under_the_command(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "pipeline_with_the_line"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    check_the_forgotten_pipeline(found)
    assert "had no effect" not in said


@pytest.mark.training
def test_the_line_in_the_script_wins_over_flags_and_that_is_said(tmp_path: Path) -> None:
    options = ("--mesh", "dp=2", "--ep", "*.weight:slice:dp")
    code, said, found = audit(
        *ranks_of(2, "pipeline_with_the_line"), options=options, json_file=tmp_path / "verdict.json"
    )
    assert code == 1, said
    check_the_forgotten_pipeline(found)
    (note,) = [finding for finding in found["findings"] if "had no effect" in finding]
    assert note.startswith("--mesh and --ep had no effect: the script says itself what its model is")


@pytest.mark.rare
@pytest.mark.training
def test_init_in_the_script_wins_over_flags_and_that_is_said(tmp_path: Path) -> None:
    code, said, found = audit(
        *ranks_of(2, "pipeline_of_its_own_norm"), options=("--mesh", "dp=2"), json_file=tmp_path / "verdict.json"
    )
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    (note,) = [finding for finding in found["findings"] if "had no effect" in finding]
    assert note.startswith("--mesh had no effect: the script says itself what its model is")
    assert note.endswith("-> put it into that line, or take the line out")


@pytest.mark.training
def test_the_line_in_the_script_gives_the_same_without_the_command(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    environment = clean_environment(GRADSYNCD=BINARY, WRITE_TO=str(path))
    command = ranks_of(2, "pipeline_with_the_line")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_the_forgotten_pipeline(json.loads(path.read_text()))
    assert "axis_missing" in done.stdout


@pytest.mark.training
def test_a_script_with_a_norm_of_its_own_tells_it(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "pipeline_of_its_own_norm"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert found["lines"][1]["name"] == "over pp"


@pytest.mark.training
def test_experts_that_are_summed_twice_are_named(tmp_path: Path) -> None:
    options = ("--mesh", "ep=2", "--ep", "experts:slice")
    code, said, found = audit(
        *ranks_of(2, "experts_summed_twice"), options=options, json_file=tmp_path / "verdict.json"
    )
    assert code == 1, said
    line = whole(found)
    assert [(cause["kind"], cause["groups"]) for cause in line["causes"]] == [("summed_twice", ["experts, over ep"])]
    verdicts = {group["name"]: group["verdict"] for group in found["lines"][1:]}
    assert verdicts == {"experts, over ep": "differs", "copied to all ranks": "agrees"}


@pytest.mark.training
def test_a_tied_weight_that_is_counted_twice_is_found_untold(tmp_path: Path) -> None:
    code, said, found = audit(
        *ranks_of(2, "tied_over_stages"), options=("--mesh", "pp=2"), json_file=tmp_path / "verdict.json"
    )
    assert code == 0, said
    assert any("--tied embed,head" in finding for finding in found["findings"])


@pytest.mark.training
def test_what_a_rank_has_for_itself_and_does_not_clip_is_left_out(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "optimizers_of_one_rank_alone"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["tensors"] == 6
    assert any("2 tensors of no call left out" in finding for finding in found["findings"])


@pytest.mark.training
def test_a_norm_in_bfloat16_is_named(tmp_path: Path) -> None:
    code, said, found = audit(*one("bfloat16"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["low_precision"]
    assert "bfloat16" in said


def verdicts(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(line["name"], line["verdict"]) for line in found["lines"] if not line["norm_group"]]


@pytest.mark.training
def test_what_is_clipped_may_change_with_every_step(tmp_path: Path) -> None:
    code, said, found = audit(*one("gan_of_one_module"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert verdicts(found) == [("part: D.0.weight … D.1.bias", "agrees"), ("part: G.weight … G.bias", "agrees")]


@pytest.mark.rare
@pytest.mark.training
def test_models_that_are_clipped_later_are_declared_too(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "gan"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert [(line["tensors"], line["verdict"]) for line in found["lines"]] == [(4, "agrees"), (2, "agrees")]
    code, said, found = audit(*one("gan_whose_second_norm_is_wrong"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [line["verdict"] for line in found["lines"]] == ["agrees", "differs"]


@pytest.mark.training
def test_a_model_that_nobody_knew_is_not_seen_and_not_called_right(tmp_path: Path) -> None:
    code, said, found = audit(*one("another_model_later"), json_file=tmp_path / "verdict.json")
    assert code == 2, said
    assert verdicts(found) == [("whole model", "agrees"), ("part: unknown tensors", "not seen")]
    assert "generator" not in said


@pytest.mark.rare
@pytest.mark.training
def test_what_only_some_steps_clip_wrongly_is_found(tmp_path: Path) -> None:
    code, said, found = audit(*one("only_some_steps_are_wrong"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert verdicts(found) == [("part: D.0.weight … D.1.bias", "agrees"), ("part: G.weight … G.bias", "differs")]


@pytest.mark.rare
@pytest.mark.training
def test_norms_of_layers_that_are_logged_first_are_parts(tmp_path: Path) -> None:
    code, said, found = audit(*one("layers_logged_before_the_clip"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert ("whole model", "agrees") in verdicts(found)
    assert ("part: 0.weight … 0.bias", "agrees") in verdicts(found)


@pytest.mark.training
def test_a_tensor_that_no_rank_clips_is_a_problem(tmp_path: Path) -> None:
    code, said, found = audit(*ranks_of(2, "never_clips_the_embedding"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert "1 of 4 stepped tensors is never clipped: wte.weight (norm " in said
    assert len(found["problems"]) == 1
    assert verdicts(found) == [("part: mlp.weight … lm_head.weight", "agrees")]


@pytest.mark.training
def test_a_tensor_that_one_rank_leaves_out_is_named_as_left_out(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, said, found = audit(*torchrun, SCRIPTS, "rank_one_leaves_out_the_head", json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert "rank 1 leaves out of its clip call what rank 0 passes: lm_head.weight (in 2 of 2 steps)" in said
    assert "counted as 0" not in said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["left_out"]
    assert len(found["problems"]) == 1


@pytest.mark.training
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.rare), 2])
def test_frozen_tensors_and_a_clip_for_each_group_are_no_mistake(tmp_path: Path, ranks: int) -> None:
    code, said, found = audit(*ranks_of(ranks, "freezes_the_embedding"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert not found["problems"]
    assert not found["findings"]


@pytest.mark.rare
@pytest.mark.training
def test_an_optimizer_that_never_sees_a_clip_is_a_note(tmp_path: Path) -> None:
    code, said, found = audit(*one("one_optimizer_is_not_clipped"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert not found["problems"]
    (note,) = found["findings"]
    assert "AdamW steps 1 tensor that no call is given: wte.weight" in note


@pytest.mark.training
def test_ranks_that_divide_the_parameters_among_them_leave_nothing_out(tmp_path: Path) -> None:
    command = ranks_of(2, "divides_the_parameters_among_optimizers")
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert whole(found)["verdict"] == "agrees"
    assert not found["problems"]
    assert not found["findings"]


@pytest.mark.training
@pytest.mark.parametrize(
    "name", ["forgets_to_unscale", pytest.param("forgets_to_unscale_for_a_fused_optimizer", marks=pytest.mark.rare)]
)
def test_a_norm_in_units_of_the_scaled_loss_is_named(tmp_path: Path, name: str) -> None:
    code, said, found = audit(*one(name), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    line = whole(found)
    assert [cause["kind"] for cause in line["causes"]] == ["still_scaled"]
    assert line["loss_scale"] == 65536.0
    assert line["theirs"][0] == pytest.approx(65536.0 * line["ours"], rel=1e-5)
    assert "-> call scaler.unscale_(optimizer) before the clip" in said
    assert "in 2 of 2 steps" in said
    assert "max_norm=1 acts as 1.5e-05" in said


@pytest.mark.rare
@pytest.mark.training
def test_each_part_that_is_still_scaled_is_named_though_another_optimizer_steps_first(tmp_path: Path) -> None:
    command = one("forgets_to_unscale_for_two_optimizers")
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for line in found["lines"] for cause in line["causes"]] == ["still_scaled"] * 3


@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("unscales_before_the_clip", ""),
        pytest.param("unscales_and_overflows_once", "", marks=pytest.mark.rare),
        pytest.param(
            "clips_by_a_threshold_in_scaled_units",
            "max_norm=65536, which seems to be meant so",
            marks=pytest.mark.rare,
        ),
    ],
)
def test_scalers_that_are_used_rightly_are_no_mistake(tmp_path: Path, name: str, note: str) -> None:
    code, said, found = audit(*one(name), options=("--steps", "3"), json_file=tmp_path / "verdict.json")
    assert code == 0, said
    assert verdicts(found) == [("whole model", "agrees")]
    assert note in "".join(found["findings"])
    assert bool(note) == bool(found["findings"])


@pytest.mark.training
def test_squares_that_overflow_are_named_and_a_failed_command_goes_before(tmp_path: Path) -> None:
    code, said, found = audit(*one("overflow"), json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert [cause["kind"] for cause in whole(found)["causes"]] == ["overflow"]
    assert whole(found)["theirs"] == ["Infinity"]
    assert audit(*one("fails_by_itself"))[0] == 7


def test_a_command_that_does_not_clip_is_2_and_says_why() -> None:
    code, said, _ = audit(*one("clips_nothing"))
    assert code == 2
    assert "no process called clip_grad_norm_" in said


@pytest.mark.parametrize(
    "command",
    [one("raises_before_the_clip"), pytest.param(ranks_of(2, "raises_before_the_clip"), marks=pytest.mark.rare)],
)
def test_a_command_that_fails_before_it_clips_is_said_to_have_failed(tmp_path: Path, command: list[str]) -> None:
    code, said, found = audit(*command, json_file=tmp_path / "verdict.json")
    assert code == 1
    assert found["reason"].startswith("the command ended with code 1 before any rank called a clip function of torch: ")
    assert "ZeroDivisionError: no batch is left, at " in found["reason"]
    assert f"{SCRIPTS}:" in found["reason"]
    assert "in raises_before_the_clip" in found["reason"]
    assert ("rank 1: " in found["reason"]) == ("ranks" in command)
    assert "no process called" not in said
    assert "Traceback" in said


@pytest.mark.rare
@pytest.mark.training
def test_a_command_that_fails_later_is_said_to_have_failed_beside_its_verdict(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, said, found = audit(*torchrun, SCRIPTS, "raises_in_the_second_step", json_file=tmp_path / "verdict.json")
    assert code == 1, said
    assert whole(found)["verdict"] == "agrees"
    assert found["steps"] == 1
    ended = "the command ended with code 1 after 1 of 2 steps: rank 1: ZeroDivisionError: no batch is left, at "
    assert any(finding.startswith(ended) for finding in found["findings"])


def of_two_nodes(tmp_path: Path, name: str) -> list[tuple[int, str, dict[str, Any]]]:
    """What `gradsync audit` on each of two nodes of two ranks says."""

    def node(number: int) -> tuple[int, str, dict[str, Any]]:
        command = [*ranks_of(2, name), str(2 * number), "4"]
        return audit(*command, json_file=tmp_path / f"{number}.json", NODES=str(tmp_path))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(node, range(2)))


@pytest.mark.rare
@pytest.mark.training
def test_an_audit_over_two_nodes_says_that_it_sees_one(tmp_path: Path) -> None:
    for number, (code, said, found) in enumerate(of_two_nodes(tmp_path, "ddp")):
        assert code == 2, said
        ranks = ("0, 1", "2, 3")[number]
        assert f"one node: ranks {ranks} of 4; what the ranks of other nodes hold and do is not seen here" in said
        assert "never called" not in said
        assert whole(found)["verdict"] == "agrees"
        assert "that the other nodes hold the same is not known" in " ".join(said.split())
        assert found["ranks"] == 2
        assert not found["problems"]


@pytest.mark.training
def test_an_audit_over_two_nodes_finds_what_one_node_shows(tmp_path: Path) -> None:
    for code, said, found in of_two_nodes(tmp_path, "never_clips_the_embedding"):
        assert code == 1, said
        assert "1 of 4 stepped tensors is never clipped: wte.weight" in found["problems"][0]


@pytest.mark.rare
@pytest.mark.training
def test_shards_over_two_nodes_are_not_called_wrong_or_right(tmp_path: Path) -> None:
    for code, said, found in of_two_nodes(tmp_path, "shards_over_all"):
        assert code == 2, said
        assert whole(found)["verdict"] == "not seen"
        assert "its tensors lie over ranks of other nodes as well" in said
        assert "-> for the whole model, give gradsync audit on every node the same --folder" in " ".join(said.split())


def test_stop_ends_the_command_after_the_steps() -> None:
    code, said, _ = audit(*one("waits_for_a_signal"), options=("--stop",))
    assert code == 1, said
    assert "overflow" in said


def test_a_signal_reaches_the_command() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gradsync", "audit", "--steps", "2", "--", *one("waits_for_a_signal")],
        env=clean_environment(GRADSYNCD=BINARY),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "waiting\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(DEADLINE_S) == 5


def test_processes_without_torch_stay_without_it_and_keep_their_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = __name__\n")
    script = "import sys; print(theirs, 'torch' in sys.modules, 'gradsync' in sys.modules)"
    _, said, _ = audit(sys.executable, "-c", script, PYTHONPATH=str(tmp_path))
    assert "sitecustomize False False\n" in said


def test_without_a_daemon_nothing_is_started(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    code, said, _ = audit("touch", str(mark), GRADSYNCD=str(tmp_path / "none"))
    assert code == 2
    assert "GRADSYNCD" in said
    assert not mark.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "0"), "give 1 or more"),
        (("--mesh", "pp"), "pp=2,dp=4"),
        (("--mesh", "pp=0"), "pp=2,dp=4"),
        (("--ep", "x"), "own"),
        (("--tolerance", "nan"), "no relative tolerance"),
        (("--json", "/nowhere/at/all"), "it cannot be written"),
        (("python", "train.py"), "the command comes after --"),
    ],
)
def test_wrong_arguments_say_what_is_right(options: tuple[str, ...], message: str) -> None:
    code, said, _ = audit("true", options=options)
    assert code == 2
    assert message in said
