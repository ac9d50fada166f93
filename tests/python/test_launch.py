"""Which rank of which job a process is, from what launchers put into the environment and from arguments.

Slurm and Open MPI are not started here: their variables are set as srun and mpirun set them. mpirun itself starts ranks
in tests/integration/test_launchers.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from gradsync._launch import _resolve
from gradsync._launch._job_name import job_name
from gradsync._launch._resolve import Launch, rank_and_world, resolve_launch
from gradsync.errors import UsageError

READABLE = re.compile(r"[^@\s]+@[^@\s]+-[0-9a-f]{4}")
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x1/none_abc/attempt_3/1/error.json",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-4711@1",
}


def launch(environ: dict[str, str], **arguments: Any) -> Launch:
    given: dict[str, Any] = {"job": None, "rank": None, "world_size": None, "restart_count": None} | arguments
    return resolve_launch(environ=environ, **given)


@pytest.mark.parametrize(
    ("environ", "rank", "world_size", "restart_count"),
    [(TORCHRUN, 1, 2, 3), (SRUN, 1, 4, 0), (MPIRUN, 2, 4, 0), ({}, 0, 1, 0)],
    ids=["torchrun", "srun", "mpirun", "alone"],
)
def test_a_launcher_says_everything(environ: dict[str, str], rank: int, world_size: int, restart_count: int) -> None:
    found = launch(environ)
    assert (found.rank, found.world_size, found.restart_count) == (rank, world_size, restart_count)
    assert READABLE.fullmatch(found.job)
    assert rank_and_world(environ) == (rank, world_size)


@pytest.mark.parametrize(
    ("environ", "rank_variable"),
    [(TORCHRUN, "RANK"), (SRUN, "SLURM_PROCID"), (MPIRUN, "OMPI_COMM_WORLD_RANK")],
    ids=["torchrun", "srun", "mpirun"],
)
def test_all_ranks_have_the_same_name(environ: dict[str, str], rank_variable: str) -> None:
    others = {**environ, rank_variable: "0", "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x1/none_abc/attempt_3/0/e"}
    assert launch(others).job == launch(environ).job


@pytest.mark.parametrize(
    ("environ", "changed"),
    [
        (TORCHRUN, {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x2/none_def/attempt_0/1/error.json"}),
        (TORCHRUN, {"TORCHELASTIC_ERROR_FILE": "", "MASTER_PORT": "29501"}),
        (TORCHRUN, {"TORCHELASTIC_ERROR_FILE": "", "TORCHELASTIC_RUN_ID": "b"}),
        (SRUN, {"SLURM_STEP_ID": "1"}),
        (SRUN, {"SLURM_JOB_ID": "78"}),
        (MPIRUN, {"PMIX_NAMESPACE": "prterun-host-4712@1"}),
    ],
)
def test_another_run_has_another_name(environ: dict[str, str], changed: dict[str, str]) -> None:
    assert launch(environ | changed).job != launch(environ).job


def test_ranks_that_torchrun_restarts_keep_their_job() -> None:
    again = {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x1/none_abc/attempt_4/1/error.json", "MASTER_PORT": "29777"}
    assert launch(TORCHRUN | again).job == launch(TORCHRUN).job


def test_ranks_of_two_agents_on_this_node_share_what_both_agents_know() -> None:
    first = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
    second = first | {"RANK": "0", "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_y/none_q/attempt_3/0/error.json"}
    assert launch(first).job == launch(second).job


def test_a_process_alone_keeps_its_name_and_the_next_has_another() -> None:
    assert launch({}).job == launch({}).job == launch({}, world_size=1).job
    program = "from gradsync._launch._job_name import job_name; print(job_name(None))"
    names = {subprocess.check_output([sys.executable, "-c", program], text=True) for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("python@") for name in names)


@pytest.mark.parametrize(
    ("argv", "host", "start"),
    [
        (["/home/me/train.py", "--lr", "1"], "host.example.org", "train.py@host-"),
        (["/site/trainer/__main__.py"], "host", "trainer@host-"),
        (["-c"], "host", "python@host-"),
        ([""], "", "python@--"),
        ([], "host", "python@host-"),
        (["my train\n\u2028\x7f.py"], "a b", "my-train---.py@a-b-"),
        (["\udc80.py"], "host", "-.py@host-"),
        (["größe.py"], "host", "größe.py@host-"),
    ],
)
def test_names_are_readable(argv: list[str], host: str, start: str) -> None:
    name = job_name("shared", argv, host)
    assert name.startswith(start)
    assert re.fullmatch("[0-9a-f]{4}", name.removeprefix(start))


def test_names_are_not_too_long_for_the_daemon() -> None:
    assert len(job_name("shared", ["𝔤" * 300], "𝔥" * 300).encode()) <= 256


def test_arguments_win_over_launchers() -> None:
    assert launch(SRUN, job="llm").job == "llm"
    found = launch(TORCHRUN, job="llm", rank=0, world_size=1, restart_count=0)
    assert found == Launch(job="llm", rank=0, world_size=1, restart_count=0)


def test_torchrun_under_another_launcher_is_the_nearest() -> None:
    assert launch(MPIRUN | SRUN | TORCHRUN).world_size == 2
    assert launch(MPIRUN | SRUN).rank == 2  # mpirun starts its helpers by srun


@pytest.mark.parametrize(
    "changed",
    [{"SLURM_STEP_ID": ""}, {"SLURM_JOB_NAME": "bash"}, {"SLURM_JOB_NAME": "interactive"}],
    ids=["batch script", "srun --pty bash", "salloc"],
)
def test_what_a_shell_under_slurm_starts_is_alone(changed: dict[str, str]) -> None:
    assert (launch(SRUN | changed).rank, launch(SRUN | changed).world_size) == (0, 1)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1"}, "LOCAL_WORLD_SIZE=1"),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "OMPI_COMM_WORLD_LOCAL_SIZE=2"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "SLURM_STEP_TASKS_PER_NODE=2"),
    ],
)
def test_several_nodes_are_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match="all its ranks on one node") as caught:
        launch(environ)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["PMI_SIZE", "MV2_COMM_WORLD_SIZE"])
def test_one_of_several_that_nobody_numbers_is_not_taken_for_the_only_one(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}=4") as caught:
        launch({name: "4"})
    assert "init_process_group" in str(caught.value)
    assert launch({name: "1"}).world_size == 1
    assert launch({name: "4"}, world_size=1).world_size == 1


def test_a_process_of_multiprocessing_is_not_taken_for_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing.process

    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: object())
    with pytest.raises(UsageError, match="multiprocessing started this process"):
        launch({})
    assert launch({}, world_size=1).rank == 0


class Group:
    """A process group that has agreed."""

    rank, world_size = 1, 2

    def agree_on(self, name: str, timeout: float) -> str:
        return "agreed"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resolve, "process_group", Group)


@pytest.mark.usefixtures("group")
def test_the_process_group_comes_before_other_launchers() -> None:
    for environ in ({}, SRUN, MPIRUN, TORCHRUN):
        assert launch(environ).job == "agreed"
        assert (launch(environ).rank, launch(environ).world_size) == rank_and_world(environ) == (1, 2)
    assert launch({}, job="llm") == Launch(job="llm", rank=1, world_size=2, restart_count=0)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("environ", "arguments", "both"),
    [
        (TORCHRUN | {"WORLD_SIZE": "4"}, {}, ("WORLD_SIZE=4", "world_size 2")),
        (TORCHRUN | {"RANK": "0"}, {}, ("RANK=0", "rank 1")),
        ({"WORLD_SIZE": "4"}, {"job": "llm"}, ("WORLD_SIZE=4", "world_size 2")),
        ({}, {"world_size": 4}, ("world_size=4", "world_size 2")),
        ({}, {"rank": 0}, ("rank=0", "rank 1")),
    ],
)
def test_contradictions_are_refused_and_name_both(
    environ: dict[str, str], arguments: dict[str, Any], both: tuple[str, str]
) -> None:
    with pytest.raises(UsageError) as caught:
        launch(environ, **arguments)
    assert all(one in str(caught.value) for one in both), caught.value


@pytest.mark.usefixtures("group")
def test_the_way_out_of_a_contradiction_works() -> None:
    assert launch({"WORLD_SIZE": "4"}, world_size=2).world_size == 2
    assert launch({}, job="half", rank=0, world_size=1).world_size == 1
