"""Inputs and outputs in the arena, as a declaration's answer lays them out, and buckets of other ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy
import pytest
from fake_daemon import FakeDaemon

import gradsync
from gradsync import Mesh, Partial, Replicate, Shard, Tensor
from gradsync._step._output import mesh_of, padded, reserved_bytes
from gradsync.errors import UsageError

MESH = Mesh({"dp": 2, "tp": 2})
SCATTERED = {"dp": Partial("mean") >> Shard(0), "tp": Shard(1)}
WHOLE = {"dp": Partial("mean") >> Replicate(), "tp": Replicate()}
TENSORS = [
    Tensor("w", (5, 8), local_shape=(5, 4), placements=SCATTERED),
    Tensor("norm", (3,), placements=WHOLE),
    Tensor("v", (3, 80), local_shape=(3, 40), dtype="bfloat16", placements=SCATTERED),
    Tensor("one", (1, 2), local_shape=(1, 1), placements=SCATTERED),
]
STRIDES = [128 + 64, 64, 256 + 192, 64 + 64]  # bytes of input and output: 80 and 48, 12, 240 and 160, 4 and 4


def answer(daemon: FakeDaemon, buckets: list[list[int]], *, offsets: bool) -> None:
    """Scripts the answer of a declaration: the buckets one behind the other, and inside them tensor by tensor."""

    def reply(params: dict[str, Any]) -> dict[str, Any]:
        at, found, where = 0, [], {}
        for members in buckets:
            begin = at
            for index in members:
                where[index] = at
                at += STRIDES[index]
            wire = {"dtype": "float32", "offset": begin, "bytes": at - begin, "tensors": members}
            found.append(wire)
        more = {"offsets": [where[i] for i in range(len(where))]} if offsets else {}
        return {
            "epoch": 1,
            "attempt": 0,
            "plan_digest": "ab" * 8,
            "arena_bytes": at,
            "clip_groups": ["all"],
            "buckets": found,
            **more,
        }

    daemon.script["gradients.declare"] = reply


def declared(client: gradsync.Client, rank: int) -> gradsync.Grads:
    return client.attach(job="j", rank=rank, world_size=4, meshes={"m": MESH}).declare(TENSORS)


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("rank", range(4))
def test_outputs_follow_their_inputs(client: gradsync.Client, daemon: FakeDaemon, rank: int, offsets: bool) -> None:
    answer(daemon, [[3, 2], [1, 0]], offsets=offsets)
    grads = declared(client, rank)
    (asked,) = daemon.of("buffers.allocate")
    assert asked["bytes"] == sum(STRIDES) == grads.arena_memoryview().nbytes
    assert grads.offsets == [128 + 448 + 64, 128 + 448, 128, 0]
    first = rank < 2
    shapes = {name: (grads.input(name).shape, grads.output(name).shape) for name in ("w", "norm", "v", "one")}
    assert shapes == {
        "w": ((5, 4), (3, 4) if first else (2, 4)),
        "norm": ((3,), (3,)),
        "v": ((3, 40), (2, 40) if first else (1, 40)),
        "one": ((1, 1), (1, 1) if first else (0, 1)),
    }
    assert [grads.output(name).offset - grads.input(name).offset for name in shapes] == [128, 0, 256, 64]
    assert grads.output("norm") is grads.input("norm")
    assert grads.output("w") is grads.output("w")
    assert grads.output("one").numpy().shape == shapes["one"][1]


def test_inputs_and_outputs_share_no_byte(client: gradsync.Client, daemon: FakeDaemon) -> None:
    answer(daemon, [[0, 1, 2, 3]], offsets=True)
    grads = declared(client, 0)
    buffers = {id(b): b for t in TENSORS for b in (grads.input(t.name), grads.output(t.name))}
    assert len(buffers) == 7
    for number, buffer in enumerate(buffers.values(), 1):
        assert set(buffer.memoryview()) <= {0}
        buffer.memoryview()[:] = bytes([number]) * buffer.nbytes
    found = numpy.frombuffer(grads.arena_memoryview(), numpy.uint8)
    assert [int((found == n).sum()) for n in range(1, 8)] == [b.nbytes for b in buffers.values()]
    output = grads.output("w")
    bits = os.pread(daemon.arena(1), output.nbytes, output.offset)
    assert bits == bytes([2]) * 48


def test_the_strides_of_this_test_are_those_of_the_client() -> None:
    for tensor, stride in zip(TENSORS, STRIDES, strict=True):
        assert stride == padded(tensor.nbytes) + padded(reserved_bytes(tensor, mesh_of(tensor, {"m": MESH})))


def test_an_output_as_a_torch_tensor(client: gradsync.Client, daemon: FakeDaemon) -> None:
    torch = pytest.importorskip("torch")
    answer(daemon, [[0, 1, 2, 3]], offsets=True)
    grads = declared(client, 3)
    assert grads.output("v").torch().dtype == torch.bfloat16
    assert tuple(grads.output("one").torch().shape) == (0, 1)
    grads.output("w").torch().fill_(2)
    assert grads.output("w").numpy().tolist() == [[2.0] * 4] * 2


def test_views_outlive_a_new_declaration(client: gradsync.Client, daemon: FakeDaemon) -> None:
    answer(daemon, [[0, 1, 2, 3]], offsets=True)
    grads = declared(client, 0)
    view = grads.output("w").memoryview()
    with pytest.raises(UsageError, match="no tensor 'x' was declared"):
        grads.output("x")
    daemon.script.clear()
    grads._job.declare([Tensor("a", (1,), placements={"dp": Replicate(), "tp": Replicate()})])
    with pytest.raises(UsageError, match="declared anew"):
        grads.ready("w")
    view[:] = bytes(48)


def test_a_bucket_of_other_ranks_is_neither_waited_for_nor_reported(
    client: gradsync.Client, daemon: FakeDaemon
) -> None:
    answer(daemon, [[], [3, 2], [], [1, 0]], offsets=True)
    grads = declared(client, 0)
    assert [bucket.tensors for bucket in grads.buckets] == [(), (3, 2), (), (1, 0)]
    for _ in range(2):
        for tensor in TENSORS:
            grads.ready(tensor.name)
        grads.finish()
    for bucket in grads.buckets:
        grads.ready_bucket(bucket.index)
    grads.finish(ready="all")
    assert [params["bucket"] for params in daemon.of("bucket.ready")] == [3, 1, 3, 1, 1, 3]
    assert [params["ready"] for params in daemon.of("step.finish")] == ["all"] * 3


def test_a_rank_that_holds_nothing_finishes_its_steps(client: gradsync.Client, daemon: FakeDaemon) -> None:
    answer(daemon, [[], []], offsets=True)
    grads = client.attach(job="j", rank=0, world_size=4, meshes={"m": MESH}).declare([])
    assert grads.finish().step == 0
    assert grads.compute_norm().step == 1
    assert daemon.of("buffers.allocate") == [{"bytes": 64, "device": "cpu"}]
    assert daemon.of("bucket.ready") == []
