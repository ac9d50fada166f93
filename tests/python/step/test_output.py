"""What a rank holds after sync and what it reserves for it: by hand, against torch.chunk, and against brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsync import Mesh, Only, Partial, Replicate, Shard, Tensor
from gradsync._step._output import arena_bytes, cuts_of, output_shape, padded, reserved_bytes

MEAN, SUM = Partial("mean"), Partial("sum")
CONVENTIONAL = ["tp", "ep", "cp", "dp_shard", "dp_replicate"]


def shapes(tensor: Tensor, mesh: Mesh) -> list[tuple[int, ...]]:
    return [output_shape(tensor, mesh, rank) for rank in range(math.prod(mesh.axes.values()))]


def test_fsdp_over_tp_by_hand() -> None:
    """What tensor parallelism left, three rows, is cut over data parallelism: two rows, then one."""
    mesh = Mesh({"dp": 2, "tp": 2})
    weight = Tensor("w", (6, 4), local_shape=(3, 4), placements={"dp": MEAN >> Shard(0), "tp": Shard(0)})
    assert shapes(weight, mesh) == [(2, 4), (2, 4), (1, 4), (1, 4)]
    assert reserved_bytes(weight, mesh) == 2 * 4 * 4
    assert arena_bytes([weight], {"m": mesh}) == 64 + 64


def test_the_last_ranks_may_hold_nothing() -> None:
    mesh = Mesh({"dp": 4})
    bias = Tensor("b", (5,), dtype="bfloat16", placements={"dp": SUM >> Shard(0)})
    assert shapes(bias, mesh) == [(2,), (2,), (1,), (0,)]
    assert reserved_bytes(bias, mesh) == 4
    single = Tensor("s", (1, 3), placements={"dp": SUM >> Shard(0)})
    assert shapes(single, mesh) == [(1, 3), (0, 3), (0, 3), (0, 3)]
    nothing = Tensor("n", (0, 3), placements={"dp": SUM >> Shard(0)})
    assert shapes(nothing, mesh) == [(0, 3)] * 4
    assert cuts_of(nothing, mesh)
    assert reserved_bytes(nothing, mesh) == 0


def test_two_stages_on_one_dim_cut_in_stage_order() -> None:
    """7 over 3 and 2: cp first leaves 3, 3, 1 and halves of those; dp_shard first leaves 4, 3 and thirds of those."""
    placements = {"dp_shard": SUM >> Shard(0), "cp": SUM >> Shard(0)}
    tensor = Tensor("w", (7,), placements=placements)
    axes = {"dp_shard": 2, "cp": 3}
    assert shapes(tensor, Mesh(axes)) == [(2,), (2,), (1,), (1,), (1,), (0,)]
    assert shapes(tensor, Mesh(axes, sync_order=("dp_shard", "cp"))) == [(2,), (2,), (0,), (1,), (1,), (1,)]
    assert reserved_bytes(tensor, Mesh(axes)) == 8


def test_the_stage_order() -> None:
    axes = {"zone": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "ep": 2, "tp": 2, "a": 2}

    def order(mesh: Mesh, keys: list[str | tuple[str, ...]]) -> list[str]:
        tensor = Tensor("w", (64,), placements={key: SUM >> Shard(0) for key in keys})
        return ["+".join(cut.axes) for cut in cuts_of(tensor, mesh)]

    usual = ["tp", "ep", "cp", "dp_shard", "dp_replicate", "zone", "a"]
    assert order(Mesh(axes), list(axes)) == usual
    assert order(Mesh(axes, sync_order=tuple(reversed(usual))), list(axes)) == usual[::-1]
    # Among flattened axes the earliest counts, wherever it is named; an axis of size 1 never does.
    assert order(Mesh(axes), ["ep", ("dp_replicate", "tp"), "cp"]) == ["dp_replicate+tp", "ep", "cp"]
    assert order(Mesh(axes | {"tp": 1}), ["ep", ("dp_replicate", "tp"), "cp"]) == ["ep", "cp", "dp_replicate+tp"]


def test_flattened_axes_are_one_axis_whose_first_name_is_the_slowest() -> None:
    mesh = Mesh({"cp": 2, "dp": 3})
    tensor = Tensor("w", (5,), placements={("dp", "cp"): SUM >> Shard(0)})
    # Rank = cp · 3 + dp; part = dp · 2 + cp, of six parts of one row.
    assert shapes(tensor, mesh) == [(1,), (1,), (1,), (1,), (1,), (0,)]


@pytest.mark.parametrize(
    "placements",
    [
        {"dp": MEAN >> Replicate(), "tp": Shard(0)},
        {"dp": Replicate(), "tp": Only(1)},
        {"one": SUM >> Shard(0), "dp": MEAN >> Replicate()},
        {},
    ],
)
def test_nothing_is_reserved_where_nothing_is_scattered(placements: dict) -> None:
    mesh = Mesh({"dp": 2, "tp": 2, "one": 1})
    tensor = Tensor("w", (8, 3), local_shape=(4, 3), placements=placements)
    assert cuts_of(tensor, mesh) == ()
    assert reserved_bytes(tensor, mesh) == 0
    assert set(shapes(tensor, mesh)) == {(4, 3)}
    assert arena_bytes([tensor], {"m": mesh}) == 64


@pytest.mark.parametrize("placements", [{"dpp": SUM >> Shard(0)}, {"dp": SUM >> Shard(2)}])
def test_what_the_daemon_refuses_is_left_to_it(placements: dict) -> None:
    tensor = Tensor("w", (8, 3), placements=placements)
    assert cuts_of(tensor, Mesh({"dp": 2})) == ()
    assert arena_bytes([Tensor("w", (8, 3), mesh="other", placements={"dp": SUM >> Shard(0)})], {}) == 128


def test_the_arena_gives_each_tensor_its_own_line_and_is_never_empty() -> None:
    meshes = {"m": Mesh({"dp": 1})}
    assert arena_bytes([], meshes) == 64
    assert arena_bytes([Tensor("a", (0,))], meshes) == 64
    three = [Tensor("a", (1,)), Tensor("b", (17,)), Tensor("c", (), dtype="float64")]
    assert arena_bytes(three, meshes) == 64 + 128 + 64


def test_of_several_meshes_the_tensor_names_its_own() -> None:
    meshes = {"dense": Mesh({"dp": 2}), "expert": Mesh({"dp": 1, "ep": 2})}
    over = {"dp": SUM >> Shard(0)}
    assert arena_bytes([Tensor("w", (16,), mesh="dense", placements=over)], meshes) == 128
    assert arena_bytes([Tensor("w", (16,), mesh="expert", placements=over)], meshes) == 64


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(1, 5))
def test_one_cut_is_that_of_torch_chunk(rows: int, parts: int) -> None:
    torch = pytest.importorskip("torch")
    mesh = Mesh({"dp": parts})
    tensor = Tensor("w", (2, rows), placements={"dp": SUM >> Shard(1)})
    chunks = [tuple(chunk.shape) for chunk in torch.chunk(torch.empty(2, rows), parts, dim=1)]
    chunks = chunks if parts > 1 else [(2, rows)]
    assert shapes(tensor, mesh) == (chunks + [(2, 0)] * parts)[:parts]


@st.composite
def scattered(draw: st.DrawFn) -> tuple[Tensor, Mesh]:
    names = draw(st.permutations([*CONVENTIONAL, "zone"]))[: draw(st.integers(1, 4))]
    sizes = {name: draw(st.integers(1, 3)) for name in names}
    order = draw(st.none() | st.permutations(names).map(tuple))
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    free, placements = list(names), {}
    while free:
        key = tuple(free.pop() for _ in range(draw(st.integers(1, min(2, len(free))))))
        dim = draw(st.integers(0, len(shape) - 1))
        kinds = [SUM >> Shard(dim), MEAN >> Shard(dim), MEAN >> Replicate(), Replicate()]
        placements[key if len(key) > 1 else key[0]] = draw(st.sampled_from(kinds))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float64"]))
    return Tensor("w", shape, dtype=dtype, placements=placements), Mesh(sizes, sync_order=order)


def brute_force(tensor: Tensor, mesh: Mesh) -> list[list[list[int]]]:
    """By rank and dim, the indices held after sync: every stage hands each of its ranks a stretch of equal length."""
    sizes = dict(mesh.axes)
    strides = {name: math.prod(list(sizes.values())[i + 1 :]) for i, name in enumerate(sizes)}
    held = [[list(range(extent)) for extent in tensor.shape] for _ in range(math.prod(sizes.values()))]
    order = mesh.sync_order or [n for n in CONVENTIONAL if n in sizes] + [n for n in sizes if n not in CONVENTIONAL]
    done = set()
    for name in order:
        for key, placement in tensor.placements.items():
            axes = (key,) if isinstance(key, str) else key
            if name not in axes or sizes[name] == 1 or key in done or not hasattr(placement, "op"):
                continue
            done.add(key)
            if isinstance(placement.to, Shard):
                for rank, indices in enumerate(held):
                    mine, ranks = 0, 1
                    for axis in axes:
                        mine = mine * sizes[axis] + rank // strides[axis] % sizes[axis]
                        ranks *= sizes[axis]
                    all_of_it = indices[placement.to.dim]
                    each = math.ceil(len(all_of_it) / ranks)
                    indices[placement.to.dim] = all_of_it[mine * each : (mine + 1) * each]
    return held


@settings(max_examples=300, deadline=None)
@given(scattered())
def test_agrees_with_brute_force(made: tuple[Tensor, Mesh]) -> None:
    tensor, mesh = made
    held = brute_force(tensor, mesh)
    got = shapes(tensor, mesh)
    assert got == [tuple(map(len, indices)) for indices in held]
    item = {"float32": 4, "bfloat16": 2, "float64": 8}[tensor.dtype]
    most = max(math.prod(shape) for shape in got) * item
    if cuts_of(tensor, mesh):
        assert reserved_bytes(tensor, mesh) == most  # of whole inputs rank 0 has the largest output
        assert arena_bytes([tensor], {"m": mesh}) == max(64, padded(tensor.nbytes) + padded(most))
    else:
        assert set(got) == {tensor.shape}
        assert reserved_bytes(tensor, mesh) == 0
    # Over the ranks, every element is held equally often: by the ranks that nothing tells apart.
    splitting = math.prod(cut.parts for cut in cuts_of(tensor, mesh))
    assert sum(math.prod(shape) for shape in got) * splitting == math.prod(tensor.shape) * len(got)
