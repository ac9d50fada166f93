"""Which rank of which job a process is, from what launchers put into the environment and from arguments.

Slurm and Open MPI are not started here: their variables are set as srun and mpirun set them. mpirun itself starts ranks
in tests/integration/training/test_launchers.py.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gradsync._launch import _process_group, _resolve
from gradsync._launch._job_name import job_name
from gradsync._launch._process_group import ProcessGroup
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
TORCHRUN_OVER_NODES = TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node0.example.org"}
SRUN_OVER_NODES = SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"}
MPIRUN_OVER_NODES = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


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
        (["train.py"], "10.20.0.7", "train.py@10.20.0.7-"),
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
    assert found == Launch(job="llm", rank=0, world_size=1, restart_count=0, local_world_size=1, coordinator=None)


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
    ("environ", "local_world_size"),
    [
        (TORCHRUN, 2),
        (TORCHRUN_OVER_NODES, 1),
        (MPIRUN, 4),
        (MPIRUN_OVER_NODES, 2),
        (SRUN, 4),
        (SRUN_OVER_NODES, 2),
        (SRUN_OVER_NODES | {"SLURM_STEP_TASKS_PER_NODE": "2,1(x2)"}, 1),
        (SRUN_OVER_NODES | {"SLURM_STEP_TASKS_PER_NODE": "2,1(x2)", "SLURM_NODEID": "0"}, 2),
        (SRUN_OVER_NODES | {"SLURM_STEP_TASKS_PER_NODE": "1(x2),2", "SLURM_NODEID": "2"}, 2),
        (SRUN_OVER_NODES | {"LOCAL_WORLD_SIZE": "3"}, 3),
        ({}, 1),
    ],
)
def test_launchers_say_how_many_ranks_this_node_has(environ: dict[str, str], local_world_size: int) -> None:
    assert launch(environ).local_world_size == local_world_size


def test_where_nobody_says_how_many_ranks_this_node_has_it_has_all() -> None:
    assert launch({}, job="llm", rank=0, world_size=4).local_world_size == 4
    assert launch(SRUN_OVER_NODES, job="other", rank=0, world_size=3).local_world_size == 3  # not the launcher's ranks
    assert launch(SRUN_OVER_NODES | {"SLURM_STEP_TASKS_PER_NODE": ""}).local_world_size == 4


def test_a_job_of_some_of_the_ranks_that_a_launcher_started_here_is_on_this_node() -> None:
    assert launch(TORCHRUN, job="half", rank=0, world_size=1).local_world_size == 1


def test_an_argument_says_how_many_ranks_this_node_has() -> None:
    assert launch(TORCHRUN, local_world_size=1).local_world_size == 1
    assert launch(TORCHRUN_OVER_NODES, local_world_size=2).local_world_size == 2


@pytest.mark.parametrize(
    ("environ", "arguments", "said"),
    [
        (TORCHRUN, {"local_world_size": 0}, "local_world_size=0"),
        (TORCHRUN, {"local_world_size": 3}, "local_world_size=3 of world size 2"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "0"}, {}, "LOCAL_WORLD_SIZE=0"),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "-1"}, {}, "OMPI_COMM_WORLD_LOCAL_SIZE=-1"),
    ],
)
def test_a_number_of_ranks_that_this_node_cannot_have_is_refused(
    environ: dict[str, str], arguments: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        launch(environ, **arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "arguments", "coordinator"),
    [
        (TORCHRUN_OVER_NODES, {}, "node0.example.org"),
        (TORCHRUN_OVER_NODES | {"GRADSYNC_COORDINATOR": "10.0.0.1:9000"}, {}, "10.0.0.1:9000"),
        (TORCHRUN_OVER_NODES | {"GRADSYNC_COORDINATOR": "10.0.0.1"}, {"coordinator": "node7:9001"}, "node7:9001"),
        (TORCHRUN_OVER_NODES | {"GRADSYNC_COORDINATOR": ""}, {"coordinator": "[::1]:9001"}, "[::1]:9001"),
        (SRUN_OVER_NODES, {}, None),
        (SRUN_OVER_NODES | {"MASTER_ADDR": "node0"}, {}, "node0"),
        (SRUN_OVER_NODES | {"MASTER_ADDR": ""}, {}, None),
        (MPIRUN_OVER_NODES, {}, None),
        (MPIRUN_OVER_NODES | {"GRADSYNC_COORDINATOR": "n" * 256}, {}, "n" * 256),
    ],
)
def test_over_nodes_somebody_says_where_rank_0_is(
    environ: dict[str, str], arguments: dict[str, str], coordinator: str | None
) -> None:
    assert launch(environ, **arguments).coordinator == coordinator


def test_on_one_node_nobody_looks_for_the_address_of_rank_0() -> None:
    assert launch(TORCHRUN | {"GRADSYNC_COORDINATOR": ""}, coordinator="node7").coordinator is None


@pytest.mark.parametrize("text", ["", " ", "n" * 257, "node 7", "nöde"])
def test_what_is_no_address_is_refused_and_its_origin_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        launch(TORCHRUN_OVER_NODES, coordinator=text)
    assert f"coordinator={text!r}" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        launch(TORCHRUN_OVER_NODES | {"GRADSYNC_COORDINATOR": text})
    assert f"GRADSYNC_COORDINATOR={text!r}" in str(caught.value)


def test_a_master_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR='node 7'"):
        launch(TORCHRUN_OVER_NODES | {"MASTER_ADDR": "node 7"})


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        (TORCHRUN_OVER_NODES, "node0"),
        (TORCHRUN_OVER_NODES | {"MASTER_ADDR": "10.20.0.7"}, "10.20.0.7"),
        (SRUN_OVER_NODES, "nodes"),
        (SRUN_OVER_NODES | {"MASTER_ADDR": "node0"}, "node0"),
        (MPIRUN_OVER_NODES, "nodes"),
    ],
)
def test_over_nodes_all_nodes_have_the_same_name(
    environ: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set()
    for node, rank in (("node0", "0"), ("node1", "1")):
        monkeypatch.setattr(socket, "gethostname", lambda node=node: node)
        of_node = {"TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{node}/none_abc/attempt_0/0/error.json"}
        ranks = {"RANK": rank} if "RANK" in environ else {}
        names.add(launch(environ | of_node | ranks).job)
    [name] = names
    assert name.rpartition("@")[2].rpartition("-")[0] == host


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

    def agree_on(self, name: str, timeout: float, *, spans_nodes: bool) -> str:
        return "agreed over nodes" if spans_nodes else "agreed"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resolve, "process_group", Group)


@pytest.mark.usefixtures("group")
def test_the_process_group_comes_before_other_launchers() -> None:
    for environ in ({}, SRUN, MPIRUN, TORCHRUN, TORCHRUN_OVER_NODES):
        assert launch(environ).job == ("agreed over nodes" if environ is TORCHRUN_OVER_NODES else "agreed")
        assert (launch(environ).rank, launch(environ).world_size) == rank_and_world(environ) == (1, 2)
    assert (launch({}, job="llm").job, launch({}, job="llm").rank) == ("llm", 1)


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


class Store(dict[str, bytes]):
    """The store of a process group, for ranks that come one after the other."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def name_of_rank_1_on_another_node(monkeypatch: pytest.MonkeyPatch, *, spans_nodes: bool) -> str:
    store = Store()
    distributed = SimpleNamespace(distributed_c10d=SimpleNamespace(_get_default_store=lambda: store))
    monkeypatch.setattr(_process_group, "_boot_id", lambda: "first")
    assert ProcessGroup(0, 2, distributed).agree_on("of rank 0", 1.0, spans_nodes=spans_nodes) == "of rank 0"
    monkeypatch.setattr(_process_group, "_boot_id", lambda: "second")
    return ProcessGroup(1, 2, distributed).agree_on("of rank 1", 1.0, spans_nodes=spans_nodes)


def test_ranks_on_several_nodes_agree_on_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of_rank_1_on_another_node(monkeypatch, spans_nodes=True) == "of rank 0"


def test_a_rank_on_another_node_is_refused_where_nobody_says_how_many_ranks_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="set LOCAL_WORLD_SIZE on every rank") as caught:
        name_of_rank_1_on_another_node(monkeypatch, spans_nodes=False)
    assert "boot id second, not first" in str(caught.value)
