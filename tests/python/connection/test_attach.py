"""attach(): torchrun's defaults and what is missing."""

from __future__ import annotations

import re

import pytest
from fake_daemon import FakeDaemon, Fault

import gradsync
from gradsync.errors import NoPeers, RankInUse, UsageError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def set_environment(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    for name, value in {**TORCHRUN, **changes}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_torchruns_environment_says_everything(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch)
    job = client.attach()
    assert (job.rank, job.world_size) == (3, 8)
    assert re.fullmatch(r".+@.+-[0-9a-f]{4}", job.name)
    assert daemon.of("job.attach") == [
        {
            "job": job.name,
            "rank": 3,
            "world_size": 8,
            "meshes": [{"name": "default", "axes": [{"name": "dp", "size": 8}]}],
            "restart_count": 2,
        }
    ]


@pytest.mark.parametrize("arguments", [{}, {"rank": 3, "world_size": 8}], ids=["from the environment", "given"])
def test_a_job_over_several_nodes_says_how_many_ranks_are_here_and_where_rank_0_is(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, int]
) -> None:
    set_environment(monkeypatch, LOCAL_WORLD_SIZE="4")
    job = client.attach(**arguments)
    assert daemon.of("job.attach") == [
        {
            "job": job.name,
            "rank": 3,
            "world_size": 8,
            "meshes": [{"name": "default", "axes": [{"name": "dp", "size": 8}]}],
            "restart_count": 2,
            "local_world_size": 4,
            "coordinator": "node0",
        }
    ]


def test_arguments_say_how_many_ranks_are_here_and_where_rank_0_is(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, LOCAL_WORLD_SIZE="4", GRADSYNC_COORDINATOR="node1")
    client.attach(job="llm", local_world_size=2, coordinator="node2:9000")
    [said] = daemon.of("job.attach")
    assert (said["local_world_size"], said["coordinator"]) == (2, "node2:9000")


def test_nothing_is_said_of_an_address_that_nobody_knows(client: gradsync.Client, daemon: FakeDaemon) -> None:
    client.attach(job="llm", rank=0, world_size=4, local_world_size=2)
    [said] = daemon.of("job.attach")
    assert said["local_world_size"] == 2
    assert "coordinator" not in said


@pytest.mark.parametrize(
    ("local", "arguments"),
    [("8", {}), (None, {}), ("4", {"local_world_size": 8})],
    ids=["the launcher says so", "nobody says it", "given"],
)
def test_a_job_with_all_its_ranks_on_this_node_says_nothing_of_nodes(
    client: gradsync.Client,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    local: str | None,
    arguments: dict[str, int],
) -> None:
    set_environment(monkeypatch, LOCAL_WORLD_SIZE=local, GRADSYNC_COORDINATOR="node1")
    client.attach(coordinator="node2", **arguments)
    [said] = daemon.of("job.attach")
    assert list(said) == ["job", "rank", "world_size", "meshes", "restart_count"]


def test_a_daemon_without_peers_refuses_a_job_over_several_nodes(client: gradsync.Client, daemon: FakeDaemon) -> None:
    def refuse(params: dict[str, object]) -> object:
        raise Fault("no_peers", "the job has 4 ranks, and 2 of them on this node", job="llm")

    daemon.script["job.attach"] = refuse
    with pytest.raises(NoPeers, match="2 of them on this node"):
        client.attach(job="llm", rank=0, world_size=4, local_world_size=2)
    assert client.job is None


def test_arguments_win_over_the_environment(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch)
    mesh = gradsync.Mesh({"dp": 2, "tp": 2}, sync_order=("tp", "dp"))
    client.attach(job="llm", rank=1, world_size=4, meshes={"dense": mesh, "expert": {"ep": 4}}, restart_count=0)
    assert daemon.of("job.attach") == [
        {
            "job": "llm",
            "rank": 1,
            "world_size": 4,
            "meshes": [
                {
                    "name": "dense",
                    "axes": [{"name": "dp", "size": 2}, {"name": "tp", "size": 2}],
                    "sync_order": ["tp", "dp"],
                },
                {"name": "expert", "axes": [{"name": "ep", "size": 4}]},
            ],
            "restart_count": 0,
        }
    ]


@pytest.mark.parametrize("arguments", [{}, {"world_size": 1}])
def test_a_single_process_needs_nothing(client: gradsync.Client, arguments: dict[str, int]) -> None:
    job = client.attach(**arguments)
    assert (job.rank, job.world_size) == (0, 1)
    assert re.fullmatch(r".+@.+-[0-9a-f]{4}", job.name)


@pytest.mark.parametrize(
    ("without", "named"), [("RANK", "rank="), ("WORLD_SIZE", "world_size="), ("MASTER_PORT", "MASTER_PORT")]
)
def test_what_is_missing_is_named(
    without: str, named: str, client: gradsync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, **{without: None})
    with pytest.raises(UsageError, match=named) as caught:
        client.attach()
    assert "torchrun" in str(caught.value)


def test_a_variable_that_is_no_number_is_named(client: gradsync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, RANK="first")
    with pytest.raises(UsageError, match="RANK='first'"):
        client.attach()


def test_a_rank_outside_the_world_is_refused(client: gradsync.Client) -> None:
    with pytest.raises(UsageError, match="rank 4 of world size 4"):
        client.attach(job="j", rank=4, world_size=4)


def test_the_daemons_refusal_is_typed_and_ends_with_the_hint(client: gradsync.Client, daemon: FakeDaemon) -> None:
    def refuse(params: dict[str, object]) -> object:
        raise Fault("rank_in_use", "rank 0 is held by process 17", rank=0, job="j")

    daemon.script["job.attach"] = refuse
    with pytest.raises(RankInUse) as caught:
        client.attach(job="j", rank=0, world_size=2)
    assert (caught.value.rank, caught.value.job, caught.value.kind) == (0, "j", "rank_in_use")
    assert str(caught.value).endswith("scripted hint (gradsyncd explain rank_in_use)")
    assert client.job is None


def test_a_client_holds_one_rank_at_a_time(client: gradsync.Client, daemon: FakeDaemon) -> None:
    job = client.attach(job="j", rank=0, world_size=1)
    with pytest.raises(UsageError, match="detach"):
        client.attach(job="j", rank=0, world_size=1)
    job.detach()
    job.detach()
    client.attach(job="j", rank=0, world_size=1)
    assert len(daemon.of("job.detach")) == 1


def test_closing_leaves_the_job(daemon: FakeDaemon) -> None:
    with gradsync.connect(daemon.path) as client:
        client.attach(job="j", rank=0, world_size=1)
    assert len(daemon.of("job.detach")) == 1


def test_pause_says_both_its_ends(job: gradsync.Job, daemon: FakeDaemon) -> None:
    with job.pause():
        assert daemon.of("job.pause") == [{"paused": True}]
    assert daemon.of("job.pause") == [{"paused": True}, {"paused": False}]
