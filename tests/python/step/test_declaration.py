"""What goes over the wire for tensors, placements and options, and what is refused before it does."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon, Fault
from hypothesis import given
from hypothesis import strategies as st

import gradsync
from gradsync import Clip, Only, Partial, Replicate, Shard, Tensor
from gradsync._placements import encode_placements
from gradsync._step import _declaring
from gradsync.errors import ConnectionLost, PlanMismatch, UsageError

dims = st.integers(0, 5)
ops = st.sampled_from(["sum", "mean"])
placements = st.one_of(
    st.builds(Replicate),
    st.builds(Shard, dims),
    st.lists(dims, min_size=1, max_size=3).map(lambda at: Only(*at)),
    st.builds(lambda op: Partial(op) >> Replicate(), ops),
    st.builds(lambda op, dim: Partial(op) >> Shard(dim), ops, dims),
)
axes = st.one_of(st.text(min_size=1, max_size=5), st.lists(st.text(min_size=1, max_size=5), min_size=1).map(tuple))


def decode(wire: dict) -> tuple:
    """The inverse, written from the protocol's words."""
    if wire["kind"] == "replicate":
        value: object = Replicate()
    elif wire["kind"] == "shard":
        value = Shard(wire["dim"])
    elif wire["kind"] == "only":
        value = Only(*wire["at"])
    else:
        to = wire["to"]
        value = Partial(wire["op"]) >> (Replicate() if to["kind"] == "replicate" else Shard(to["dim"]))
    return tuple(wire["axes"]), value


@given(st.dictionaries(axes, placements, max_size=4))
def test_placements_survive_the_wire(given_placements: dict) -> None:
    back = [decode(wire) for wire in encode_placements(given_placements)]
    assert back == [((k,) if isinstance(k, str) else k, v) for k, v in given_placements.items()]
    assert Tensor("t", (1,), placements=given_placements).placements == given_placements


def test_a_tensor_on_the_wire() -> None:
    tensor = Tensor(
        "wq",
        (512, 256),
        local_shape=(256, 256),
        local_offset=(256, 0),
        dtype="bfloat16",
        placements={"tp": Shard(0), ("dp", "cp"): Partial("mean") >> Replicate()},
        divisor=3,
        tied="embed",
        clip_group="muon",
        layer="layer0",
        split_order=("tp",),
        weight_fingerprint="f00",
    )
    assert tensor.encode("dense") == {
        "name": "wq",
        "shape": [512, 256],
        "local_shape": [256, 256],
        "local_offset": [256, 0],
        "dtype": "bfloat16",
        "mesh": "dense",
        "placements": [
            {"axes": ["tp"], "kind": "shard", "dim": 0},
            {"axes": ["dp", "cp"], "kind": "partial", "op": "mean", "to": {"kind": "replicate"}},
        ],
        "divisor": 3.0,
        "tied": "embed",
        "clip_group": "muon",
        "layer": "layer0",
        "split_order": ["tp"],
        "weight_fingerprint": "f00",
    }
    assert (tensor.held_shape, tensor.nbytes) == ((256, 256), 256 * 256 * 2)
    assert Tensor("b", [3]).encode("m") == {
        "name": "b",
        "shape": [3],
        "dtype": "float32",
        "mesh": "m",
        "placements": [],
    }
    assert pickle.loads(pickle.dumps(tensor)) == tensor


def test_a_bare_partial_says_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"Partial\('mean'\) >> Replicate\(\)") as caught:
        Tensor("w", (1,), placements={"dp": Partial("mean")})
    assert "Tensor('w')" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Partial("avg"),
        lambda: Partial() >> Partial(),
        lambda: Shard(-1),
        lambda: Shard(True),
        lambda: Only(),
        lambda: Only(-1),
        lambda: Tensor("", (1,)),
        lambda: Tensor("w", (-1,)),
        lambda: Tensor("w", 3),
        lambda: Tensor("w", (1,), dtype="int8"),
        lambda: Tensor("w", (1,), placements={"dp": "replicate"}),
        lambda: Tensor("w", (1,), placements={3: Replicate()}),
        lambda: Tensor("w", (1,), placements={(): Replicate()}),
        lambda: Clip(max_norm=-1),
        lambda: Clip(max_norm=math.nan),
        lambda: Clip(zero_rule="ignore"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(make) -> None:
    with pytest.raises(UsageError):
        make()


def test_options_are_keyword_only_and_values_frozen() -> None:
    with pytest.raises(TypeError):
        Clip(1.0)
    with pytest.raises(TypeError):
        Tensor("w", (1,), (1,))
    with pytest.raises(AttributeError):
        Clip().max_norm = 1.0


def test_the_timeout_of_a_declaration_is_also_that_of_the_memory(
    job: gradsync.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def fetch_fd(path: str, token: str, timeout: float) -> int:
        waited.append(timeout)
        raise ConnectionLost("nobody answers")

    monkeypatch.setattr(_declaring, "fetch_fd", fetch_fd)
    monkeypatch.setattr(_declaring, "QUICK_S", 1000.0)
    for limit in (500.0, None):
        with pytest.raises(ConnectionLost, match="nobody answers"):
            job.declare([Tensor("a", (4,))], timeout=limit)
    assert 300 < waited[0] <= 500
    assert waited[1] == 1000


def test_declare_sends_options_and_tensors(job: gradsync.Job, daemon: FakeDaemon) -> None:
    job.declare(
        [Tensor("a", (4,))],
        accumulate=2,
        norm_type=math.inf,
        clip={"all": Clip(max_norm=1), "muon": Clip(zero_rule="off", max_norm=0)},
        formula="torch",
        buckets="torch",
        partial_sums="bfloat16",
        timeout=900,
    )
    (params,) = daemon.of("gradients.declare")
    assert 600_000 < params.pop("timeout_ms") <= 900_000, "what is left of the caller's limit"
    assert params == {
        "buffer": 1,
        "page": 0,
        "last": True,
        "options": {
            "accumulate": 2,
            "norm_type": "Infinity",
            "mode": "torch",
            "clip": [
                {"group": "all", "max_norm": 1.0, "zero_rule": "refuse"},
                {"group": "muon", "max_norm": 0.0, "zero_rule": "off"},
            ],
            "buckets": "torch",
            "partial_sums": "bfloat16",
        },
        "tensors": [{"name": "a", "shape": [4], "dtype": "float32", "mesh": "default", "placements": []}],
    }
    assert daemon.of("buffers.allocate") == [{"bytes": 64, "device": "cpu"}]


def test_a_large_declaration_goes_in_pages_below_the_message_cap(job: gradsync.Job, daemon: FakeDaemon) -> None:
    names = [f"{'x' * 300}{index}" for index in range(6000)]
    grads = job.declare([Tensor(name, (1,)) for name in names])
    pages = daemon.of("gradients.declare")
    assert len(pages) > 2
    assert [page["page"] for page in pages] == list(range(len(pages)))
    assert [page["last"] for page in pages] == [False] * (len(pages) - 1) + [True]
    assert [tensor["name"] for page in pages for tensor in page["tensors"]] == names
    assert ["options" in page for page in pages] == [True] + [False] * (len(pages) - 1)
    assert grads.index_of(names[-1]) == 5999


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate": 0},
        {"accumulate": True},
        {"norm_type": 0.5},
        {"norm_type": math.nan},
        {"formula": "strictly"},
        {"buckets": "ddp"},
        {"buckets": "torch", "data_path": "stats"},
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    arguments: dict, job: gradsync.Job, daemon: FakeDaemon
) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        job.declare([Tensor("a", (1,))], **arguments)
    assert daemon.of("buffers.allocate") == []


def test_the_old_name_of_the_formula_works_and_is_warned_of(
    job: gradsync.Job, daemon: FakeDaemon, tmp_path: Path
) -> None:
    with pytest.warns(DeprecationWarning, match=r"declare\(mode=…\) is now called formula=") as caught:
        job.declare([Tensor("a", (4,))], mode="torch")  # type: ignore[call-overload]
    assert [warning.filename for warning in caught] == [__file__]
    assert daemon.of("gradients.declare")[0]["options"]["mode"] == "torch"

    path = tmp_path / "declaration.jsonl"
    with pytest.warns(DeprecationWarning, match="formula=") as caught:
        gradsync.write_declaration(path, {"m": {"dp": 1}}, [[Tensor("a", (4,))]], mode="torch")  # type: ignore[call-arg]
    assert [warning.filename for warning in caught] == [__file__]
    assert json.loads(path.read_text().splitlines()[0])["options"]["mode"] == "torch"


def test_an_argument_by_both_its_names_is_refused(job: gradsync.Job, daemon: FakeDaemon) -> None:
    with pytest.raises(UsageError, match=r"declare\(mode=…\) is the old name of formula="):
        job.declare([Tensor("a", (4,))], mode="torch", formula="torch")  # type: ignore[call-overload]
    assert daemon.of("buffers.allocate") == []


def test_a_name_twice_is_refused(job: gradsync.Job) -> None:
    with pytest.raises(UsageError, match="'a' is declared twice"):
        job.declare([Tensor("a", (1,)), Tensor("a", (2,))])


def test_a_tensor_without_a_mesh_needs_a_job_with_one(client: gradsync.Client) -> None:
    job = client.attach(job="j", rank=0, world_size=1, meshes={"dense": {"dp": 1}, "expert": {"ep": 1}})
    with pytest.raises(UsageError, match="several meshes"):
        job.declare([Tensor("a", (1,))])


def test_a_refused_declaration_gives_its_buffer_back(job: gradsync.Job, daemon: FakeDaemon) -> None:
    def refuse(params: dict) -> object:
        raise Fault("plan_mismatch", "tensor 'a': rank 1 declared shape [5]", tensor="a")

    daemon.script["gradients.declare"] = refuse
    with pytest.raises(PlanMismatch) as caught:
        job.declare([Tensor("a", (4,))])
    assert caught.value.tensor == "a"
    assert daemon.live_buffers == []


def test_declaring_anew_replaces_the_old(job: gradsync.Job, daemon: FakeDaemon) -> None:
    old = job.declare([Tensor("a", (4,))])
    view = old.input("a").memoryview()
    new = job.declare([Tensor("b", (4,))])
    assert daemon.live_buffers == [2]
    assert daemon.received[-1][0] == "buffers.release"
    assert job.grads is new
    with pytest.raises(UsageError, match="declared anew"):
        old.ready("a")
    with pytest.raises(UsageError, match="declared anew"):
        old.finish()
    view[:] = bytes(16)  # still mapped: a view keeps its memory
