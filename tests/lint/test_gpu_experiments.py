"""`make gpu-experiments` without a GPU: what it counts when programs answer, fail, crash or hang; its Python part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = ("ipc_memory", "memop_flags", "torch_memory", "nccl_one_gpu", "two_processes", "empty_step")
NATIVE = tuple(name for name in ORDER if name != "torch_memory")
TEN_MINUTES = 600
ANSWERS = 'echo \'{"experiment": "%s", "part": "a", "x": 1}\''


def write_program(path: Path, body: str) -> None:
    # 64 is how the programs answer arguments that they do not know, which is how the script sees that they start.
    path.write_text(f'#!/bin/sh\n[ "${{1:-}}" != --starts ] || exit 64\n{body}\n')
    path.chmod(0o755)


def run_script(folder: Path, **environment: str) -> tuple[int, str, list[dict[str, Any]]]:
    ended = subprocess.run(
        [str(ROOT / "scripts" / "gpu" / "experiments.sh")],
        env=os.environ | {"OUT": str(folder), "GPU_PROGRAMS": str(folder / "bin"), "ONLY": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    lines = (folder / "experiments.jsonl").read_text().splitlines()
    return ended.returncode, ended.stdout.splitlines()[-1], [json.loads(line) for line in lines]


def programs(folder: Path) -> Path:
    (folder / "bin").mkdir()
    for name in NATIVE:
        write_program(folder / "bin" / f"experiment_{name}", ANSWERS % name)
    # In place of Python: finds no library, and has no torch to ask.
    write_program(folder / "python", '[ "$1" = - ] || echo \'{"experiment": "torch_memory", "skipped": "no torch"}\'')
    return folder


def test_parts_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    folder = programs(tmp_path)
    write_program(
        folder / "bin" / "experiment_ipc_memory",
        f'{ANSWERS % "ipc_memory"}\necho \'{{"experiment": "ipc_memory", "part": "b", "failed": "no"}}\'\nexit 1',
    )
    code, last, lines = run_script(folder, PYTHON=str(folder / "python"))
    assert last == "5 answered, 1 failed, 1 skipped"
    assert code == 1
    assert [line["experiment"] for line in lines] == ["ipc_memory", *ORDER]


def test_the_limits_of_all_are_less_than_ten_minutes_and_each_program_ends_within_its_own() -> None:
    ended = subprocess.run(
        [str(ROOT / "scripts" / "gpu" / "experiments.sh"), "--limits"], capture_output=True, text=True, check=True
    )
    limits = {name: int(seconds) for name, seconds in (line.split() for line in ended.stdout.splitlines())}
    assert tuple(limits) == ORDER
    assert sum(limits.values()) < TEN_MINUTES
    folder = ROOT / "tests" / "gpu" / "experiments"
    own = {name: rf'"{name}", (\d+), ' for name in NATIVE} | {"torch_memory": r"^SECONDS = (\d+)"}
    for name, pattern in own.items():
        source = (folder / f"{name}{'.py' if name == 'torch_memory' else '.cpp'}").read_text()
        (seconds,) = map(int, re.findall(pattern, source, re.MULTILINE))
        assert seconds <= limits[name] - 10, name


def test_a_hang_that_was_noticed_is_an_answer(tmp_path: Path) -> None:
    folder = programs(tmp_path)
    write_program(folder / "bin" / "experiment_empty_step", 'echo \'{"experiment": "empty_step", "hang": "close"}\'')
    assert run_script(folder, PYTHON=str(folder / "python"))[:2] == (0, "5 answered, 0 failed, 1 skipped")


def test_a_program_that_ends_badly_fails_and_the_others_go_on(tmp_path: Path) -> None:
    folder = programs(tmp_path)
    write_program(folder / "bin" / "experiment_ipc_memory", "kill -SEGV $$")
    write_program(folder / "bin" / "experiment_memop_flags", f"{ANSWERS % 'memop_flags'}\nexit 3")
    write_program(folder / "bin" / "experiment_two_processes", "true")
    code, last, lines = run_script(folder, PYTHON=str(folder / "python"))
    assert (code, last) == (1, "3 answered, 3 failed, 1 skipped")
    failed = {line["experiment"]: line["failed"] for line in lines if "failed" in line}
    assert "ended with 139" in failed["ipc_memory"]
    assert "ended with 3" in failed["memop_flags"]
    assert "said nothing" in failed["two_processes"]


@pytest.mark.training
def test_all_experiments_together_end_in_time(tmp_path: Path) -> None:
    folder = programs(tmp_path)
    write_program(folder / "bin" / "experiment_ipc_memory", "exec sleep 1000")
    # One program takes all there is: 15 seconds, of which an experiment needs at least 10 to begin.
    code, last, lines = run_script(folder, PYTHON=str(folder / "python"), BUDGET_SECONDS="15")
    assert (code, last) == (1, "0 answered, 1 failed, 5 skipped")
    assert "not done within" in lines[0]["failed"]


def test_one_experiment_can_be_asked_alone(tmp_path: Path) -> None:
    folder = programs(tmp_path)
    code, last, lines = run_script(folder, PYTHON=str(folder / "python"), ONLY="empty_step")
    assert (code, last) == (0, "1 answered, 0 failed, 0 skipped")
    assert lines[0]["experiment"] == "empty_step"


def torch_memory(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    program = ROOT / "tests" / "gpu" / "experiments" / "torch_memory.py"
    # A GPU that is there is not asked by a test.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


def test_the_torch_part_says_why_it_is_skipped() -> None:
    code, lines = torch_memory()
    assert code == 0
    assert [line["skipped"] for line in lines] == ["no CUDA device"]


@pytest.mark.training
def test_the_torch_part_is_right_on_a_cpu() -> None:
    code, (as_grad, grad_scale) = torch_memory("--emulate")
    assert code == 0
    for dtype in ("float32", "bfloat16"):
        found = as_grad[dtype]
        assert (found["filled_in_place"], found["any_gradient"], found["same_weights"]) == (True, True, True)
        # What `zero_grad()` does by default, and why the client must own the gradients again after it.
        assert found["ours_after_set_to_none"] is False
    assert grad_scale["power_of_two"]["same_weights"] is True
    assert grad_scale["found_inf"] == {"weights_kept": True, "steps_counted": 0}
