"""Each known mistake, planted into a norm by hand: the audit names it, and only it, or says what else predicts it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from planted import Logical, Norms, Planted, kinds, only, replicate, shard

from gradsync._audit._findings import Call, Stepped
from gradsync._audit._table import as_text
from gradsync._audit._verdict import Verdict
from gradsync._step._row import Row

DENSE = Logical("dense", (6, 4), (replicate("ep"), replicate("dp")))
EXPERTS = Logical("experts", (4, 3, 2), (shard(0, "ep"), replicate("dp")))
MESH = {"dense": {"ep": 2, "dp": 3}}


def experts(p: float = 2.0) -> Planted:
    return Planted(MESH, [DENSE, EXPERTS], p)


def right(world: Planted, step: int, rank: int) -> float:
    return world.root(world.whole(step, *(tensor.name for tensor in world.steps[step].tensors)))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
def test_a_right_norm_agrees(p: float) -> None:
    verdict = experts(p).judge(right)
    assert verdict.exit_code == 0
    assert [(line.name, line.tensors, line.verdict) for line in verdict.lines] == [
        ("whole model", 2, "agrees"),
        ("copied to all ranks", 1, "agrees"),
        ("experts, over ep", 1, "agrees"),
    ]


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
def test_experts_left_out(p: float) -> None:
    def norm(world: Planted, step: int, rank: int) -> float:
        return world.root(world.whole(step, "dense") + world.power(step, rank, "experts"))

    verdict = experts(p).judge(norm)
    assert kinds(verdict) == [("axis_missing", "ep")]
    assert verdict.exit_code == 1
    assert [line.verdict for line in verdict.lines] == ["differs", "agrees", "differs"]
    assert verdict.lines[2].implied
    assert any("ranks clip by different norms" in finding and " -> " in finding for finding in verdict.findings)


def test_copies_counted_once_per_rank() -> None:
    verdict = experts().judge(lambda w, s, r: w.root(3 * w.whole(s, "dense") + w.whole(s, "experts")))
    assert kinds(verdict) == [("double_count", "dp")]
    assert verdict.lines[0].causes[0].groups == ("copied to all ranks",)


def test_everything_counted_once_per_replica() -> None:
    verdict = experts().judge(lambda w, s, r: w.root(3 * w.whole(s, "dense", "experts")))
    assert kinds(verdict) == [("double_count", "dp")]
    assert len(verdict.lines[0].causes[0].groups) == 2


def test_summed_over_all_ranks() -> None:
    verdict = experts().judge(lambda w, s, r: w.root(6 * w.whole(s, "dense") + 3 * w.whole(s, "experts")))
    assert kinds(verdict) == [("all_ranks", None)]


def test_experts_summed_twice() -> None:
    verdict = experts().judge(lambda w, s, r: w.root(w.whole(s, "dense") + 2 * w.whole(s, "experts")))
    assert kinds(verdict) == [("summed_twice", "ep")]
    assert verdict.lines[0].causes[0].groups == ("experts, over ep",)


def test_the_whole_summed_over_ep_once_more() -> None:
    verdict = experts().judge(lambda w, s, r: w.root(2 * w.whole(s, "dense", "experts")))
    assert kinds(verdict) == [("summed_twice", "ep")]
    assert len(verdict.lines[0].causes[0].groups) == 2


def test_powers_averaged() -> None:
    verdict = experts().judge(lambda w, s, r: w.root(w.whole(s, "dense") + w.whole(s, "experts") / 2))
    assert kinds(verdict) == [("averaged", "ep")]


@pytest.mark.parametrize(("kind", "parts"), [("averaged", 2), ("norms_added", 1)])
def test_norms_averaged_or_added(kind: str, parts: int) -> None:
    def norm(world: Planted, step: int, rank: int) -> float:
        own = [world.root(world.whole(step, "dense") + world.power(step, r, "experts")) for r in (0, 3)]
        return sum(own) / parts

    assert kinds(experts().judge(norm)) == [(kind, "ep")]


STAGES = [
    Logical("first", (5, 3), (only(0, "pp"), shard(0, "dp"))),
    Logical("second", (4, 3), (only(1, "pp"), shard(0, "dp"))),
]


def pipeline() -> Planted:
    return Planted({"dense": {"pp": 2, "dp": 2}}, STAGES)


def test_the_pipeline_left_out() -> None:
    verdict = pipeline().judge(lambda w, s, r: w.root(w.whole(s, "first" if r < 2 else "second")))
    assert kinds(verdict) == [("axis_missing", "pp")]
    assert len(verdict.lines[0].theirs) == 4


def test_what_a_rank_holds_itself() -> None:
    verdict = pipeline().judge(lambda w, s, r: w.root(w.power(s, r, "first") + w.power(s, r, "second")))
    assert kinds(verdict) == [("local_only", None)]


def test_where_two_mistakes_predict_the_same_both_are_named() -> None:
    tensors = [
        Logical("copied", (3, 3), (replicate("dp"), replicate("tp"))),
        Logical("split", (4,), (shard(0, "tp"), replicate("dp"))),
    ]
    world = Planted({"dense": {"dp": 2, "tp": 2}}, tensors)
    verdict = world.judge(lambda w, s, r: w.root(2 * w.whole(s, "copied") + w.whole(s, "split")))
    assert sorted(kinds(verdict)) == [("double_count", "dp"), ("double_count", "tp")]
    assert verdict.lines[1].verdict == "differs"
    assert not verdict.lines[1].implied  # of which of them?


TIED = [
    Logical("embed", (5, 3), (only(0, "pp"),), tied="e"),
    Logical("head", (5, 3), (only(1, "pp"),), tied="e"),
    Logical("other", (2, 3), (only(1, "pp"),)),
]


def test_a_tied_weight_counted_under_both_names() -> None:
    world = Planted({"dense": {"pp": 2}}, TIED)
    verdict = world.judge(lambda w, s, r: w.root(2 * w.whole(s, "embed") + w.whole(s, "other")))
    assert [cause.kind for cause in verdict.lines[0].causes] == ["tied_twice"]
    assert "'head'" in verdict.lines[0].causes[0].text


def test_a_tied_weight_that_gradsync_was_not_told_of() -> None:
    world = Planted({"dense": {"pp": 2}}, TIED)
    for step in world.steps:
        object.__setattr__(step, "tensors", tuple(replace(tensor, tied=None) for tensor in step.tensors))
    verdict = world.judge(lambda w, s, r: w.root(w.whole(s, "embed") + w.whole(s, "other")))
    assert [cause.kind for cause in verdict.lines[0].causes] == ["tied_once"]
    assert "'embed' and 'head'" in verdict.lines[0].causes[0].text


def test_a_tied_weight_that_both_count_twice_is_found() -> None:
    world = Planted({"dense": {"pp": 2}}, TIED)
    for step in world.steps:
        object.__setattr__(step, "tensors", tuple(replace(tensor, tied=None) for tensor in step.tensors))
    verdict = world.judge(lambda w, s, r: w.root(2 * w.whole(s, "embed") + w.whole(s, "other")))
    assert verdict.lines[0].verdict == "agrees"
    assert [finding for finding in verdict.findings if "--tied embed,head" in finding]


def test_a_group_with_a_weight_counted_twice_differs() -> None:
    world = Planted({"dense": {"pp": 2}}, TIED)
    verdict = world.judge(lambda w, s, r: w.root(2 * w.whole(s, "embed") + w.whole(s, "other")))
    assert [line.verdict for line in verdict.lines] == ["differs", "differs"]


def test_of_several_dtypes_the_narrow_one_is_named() -> None:
    tensors = [
        *(Logical(f"n{i}", (31, 17), (replicate("dp"),), dtype="bfloat16") for i in range(9)),
        Logical("wide", (5, 3), (replicate("dp"),)),
    ]

    def norm(world: Planted, step: int, rank: int) -> float:
        dtypes = [getattr(torch, tensor.dtype) for tensor in world.steps[step].tensors]
        pairs = zip(world.steps[step].values, dtypes, strict=True)
        return float(torch.nn.utils.get_total_norm([torch.from_numpy(v).to(dtype) for v, dtype in pairs]))

    verdict = Planted({"dense": {"dp": 2}}, tensors).judge(norm)
    assert [kind for kind, _ in kinds(verdict)] == ["low_precision"]
    assert "norms of bfloat16 gradients" in verdict.lines[0].causes[0].text


def test_a_step_whose_call_raised_is_left_out_and_counted() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        return [Call("clip", 2.0, norm if step else None)]

    verdict = experts().judge(right, calls=calls)
    assert (verdict.lines[0].verdict, verdict.lines[0].step) == ("agrees", 1)
    assert any("in 1 of 2 steps the call raised" in finding for finding in verdict.findings)
    assert verdict.exit_code == 0
    none = experts().judge(right, calls=lambda s, r, norm: [Call("clip", 2.0, None)])
    assert none.exit_code == 2


def test_parts_by_one_norm_that_is_not_a_number_are_one() -> None:
    world = experts()
    for step in world.steps:
        step.values[1][0, 0, 0] = math.nan
    calls = [Call("apply", 2.0, math.nan, tensors=(index,)) for index in (0, 1)]
    verdict = world.judge(right, calls=lambda s, r, norm: calls)
    assert [(line.name, line.verdict) for line in verdict.lines if not line.group] == [("whole model", "agrees")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_norm_in_the_gradients_own_dtype(dtype: str) -> None:
    tensors = [Logical(f"t{i}", (31, 17), (replicate("dp"),), dtype=dtype) for i in range(9)]

    def norm(world: Planted, step: int, rank: int) -> float:
        values = [torch.from_numpy(v).to(getattr(torch, dtype)) for v in world.steps[step].values]
        return float(torch.nn.utils.get_total_norm(values))

    verdict = Planted({"dense": {"dp": 2}}, tensors).judge(norm, dtype=dtype)
    assert [kind for kind, _ in kinds(verdict)] == ["low_precision"]
    assert dtype in verdict.lines[0].causes[0].text


@pytest.mark.parametrize(("factor", "kind", "theirs"), [(1e25, "overflow", math.inf), (1e-30, "underflow", 0.0)])
def test_squares_out_of_range(factor: float, kind: str, theirs: float) -> None:
    world = experts()
    for step in world.steps:
        object.__setattr__(step, "values", tuple(values * factor for values in step.values))
    assert [name for name, _ in kinds(world.judge(lambda w, s, r: theirs))] == [kind]


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_a_nan_that_the_norm_does_not_show(p: float) -> None:
    world = experts(p)
    for step in world.steps:
        step.values[1][0, 0, 0] = math.nan
    largest = max(abs(v) for v in world.steps[0].values[0].reshape(-1).tolist())

    def norm(world: Planted, step: int, rank: int) -> float:
        finite = [abs(v) for values in world.steps[step].values for v in values.reshape(-1).tolist() if v == v]
        return max(finite) if math.isinf(p) else math.fsum(v**p for v in finite) ** (1 / p)

    assert largest > 0
    verdict = world.judge(norm)
    assert [kind for kind, _ in kinds(verdict)] == ["nan_lost"]
    assert "'experts' of rank 0" in verdict.lines[0].causes[0].text


def test_a_nan_that_both_see_agrees() -> None:
    world = experts()
    for step in world.steps:
        step.values[0][0, 0] = math.nan
    assert world.judge(lambda w, s, r: math.inf).exit_code == 0


def test_what_no_mistake_predicts_is_unknown_with_its_ratio() -> None:
    verdict = experts().judge(lambda w, s, r: 1.37 * right(w, s, r))
    assert kinds(verdict) == [("unknown", None)]
    assert "1.37 times ours" in verdict.lines[0].causes[0].text
    assert [line.verdict for line in verdict.lines[1:]] == ["not seen", "not seen"]


def test_a_cause_has_to_predict_every_step() -> None:
    def norm(world: Planted, step: int, rank: int) -> float:
        times = 3 if step == 0 else 1
        return world.root(times * world.whole(step, "dense") + world.whole(step, "experts"))

    assert kinds(experts().judge(norm)) == [("unknown", None)]


@pytest.mark.parametrize(("tolerance", "verdict"), [(None, "differs"), (0.01, "agrees")])
def test_the_tolerance(tolerance: float | None, verdict: str) -> None:
    found = experts().judge(lambda w, s, r: 1.001 * right(w, s, r), tolerance=tolerance)
    assert found.lines[0].verdict == verdict


def test_the_derived_tolerance_is_of_rounding_and_says_so() -> None:
    found = experts().judge(right)
    assert 1e-5 < found.tolerance < 1e-4
    assert "2^-23" in found.tolerance_text
    assert "2 tensors" in found.tolerance_text


# what ranks call


def test_products_by_one_norm_are_one_and_norms_of_parts_are_shown() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        dense = world.root(world.whole(step, "dense"))
        return [
            Call("total", 2.0, dense, tensors=(0,)),
            Call("total", 2.0, world.root(world.power(step, rank, "experts")), tensors=(1,)),
            Call("apply", 2.0, norm, tensors=(0,)),
            Call("apply", 2.0, norm, tensors=(1,)),
        ]

    world = experts()
    verdict = world.judge(right, calls=calls)
    assert [line.name for line in verdict.lines] == ["whole model", "copied to all ranks", "experts, over ep"]
    assert verdict.lines[1].theirs == (world.root(world.whole(verdict.lines[1].step, "dense")),)
    assert verdict.lines[2].theirs == ()  # every rank had another


def test_parts_that_are_clipped_apart_are_judged_apart() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        dense = world.root(world.whole(step, "dense"))
        wrong = world.root(world.power(step, rank, "experts"))
        return [Call("clip", 2.0, dense, tensors=(0,)), Call("clip", 2.0, wrong, tensors=(1,))]

    world = experts()
    verdict = world.judge(right, calls=calls)
    assert [(line.name, line.verdict) for line in verdict.lines] == [
        ("part: dense", "agrees"),
        ("part: experts", "differs"),
    ]
    # These differ on the experts alone, so all ways to leave ep out are one.
    assert ("axis_missing", "ep") in [(cause.kind, cause.axis) for cause in verdict.lines[1].causes]


def test_a_norm_left_unreduced_is_put_together() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        over = (rank % 2, rank % 2 + 2)
        return [Call("clip", 2.0, norm, over=over)]

    tensors = [Logical("w", (4, 3), (shard(0, "dp_shard"), replicate("tp")))]
    world = Planted({"dense": {"dp_shard": 2, "tp": 2}}, tensors)
    verdict = world.judge(lambda w, s, r: w.root(w.power(s, r, "w")), calls=calls)
    assert verdict.exit_code == 0


def test_a_norm_of_another_order_is_not_judged() -> None:
    verdict = experts().judge(right, calls=lambda s, r, norm: [Call("clip", 1.0, norm)])
    assert verdict.lines[0].verdict == "not seen"
    assert verdict.exit_code == 2


def test_replicas_that_differ_are_a_failure_of_their_own() -> None:
    assert experts().judge(right, replicas_differ=True).exit_code == 1
    verdict = experts().judge(lambda w, s, r: (1 + r) * right(w, s, r), replicas_differ=True)
    assert kinds(verdict) == [("replicas_differ", None)]


def test_a_product_of_nothing_is_found_and_the_norm_still_judged() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        return [Call("total", 2.0, norm), Call("apply", 2.0, norm, tensors=())]

    verdict = experts().judge(right, calls=calls)
    assert (verdict.lines[0].name, verdict.lines[0].verdict) == ("whole model", "agrees")
    assert any("clips nothing" in finding for finding in verdict.findings)


def in_turn(norm: Norms, whole_step: bool = False) -> Verdict:
    """Two models by two optimizers: what is clipped alternates, and the other model has gradients at times."""
    world = Planted({"dense": {"dp": 2}}, [Logical(name, (5, 3), (replicate("dp"),)) for name in ("d", "g")])
    return world.judge(
        norm, calls=lambda step, rank, norm: [Call("clip", 2.0, norm, tensors=None if whole_step and step else (step,))]
    )


def of_this_step(world: Planted, step: int, rank: int) -> float:
    return world.root(world.whole(step, "dg"[step]))


def test_what_is_clipped_may_change_from_step_to_step() -> None:
    verdict = in_turn(of_this_step)
    assert [(line.name, line.step, line.verdict) for line in verdict.lines] == [
        ("part: d", 0, "agrees"),
        ("part: g", 1, "agrees"),
    ]
    assert verdict.exit_code == 0


def test_what_only_some_steps_clip_is_judged_by_them() -> None:
    verdict = in_turn(lambda w, s, r: (1 + 0.37 * s) * of_this_step(w, s, r))
    assert [line.verdict for line in verdict.lines] == ["agrees", "differs"]
    assert "1.37 times ours" in verdict.lines[1].causes[0].text
    whole = in_turn(lambda w, s, r: w.root(w.whole(s, *("dg" if s else "d"))), whole_step=True)
    assert [(line.name, line.verdict) for line in whole.lines if not line.group] == [
        ("whole model", "agrees"),
        ("part: d", "agrees"),
    ]


def test_a_call_that_not_all_ranks_make_is_not_compared_and_not_called_right() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        both = [Call("clip", 2.0, world.root(world.whole(step, "dense")), tensors=(0,)), Call("clip", 2.0, 1.0)]
        return both[: 2 - rank % 2]

    world = experts()
    verdict = world.judge(right, calls=calls)
    assert sorted({line.verdict for line in verdict.lines if line.name.startswith("part")}) == ["agrees", "not seen"]
    assert any("ranks 1, 3, 5 made no such call" in line.why and "same calls" in line.fix for line in verdict.lines)
    assert verdict.exit_code == 2


def test_two_stages_that_clip_a_part_each_clip_one_norm() -> None:
    """Sets are those of all ranks together."""
    world = pipeline()
    verdict = world.judge(right, calls=lambda s, r, norm: [Call("clip", 2.0, norm, tensors=(0,))])
    assert (verdict.lines[0].name, verdict.lines[0].verdict) == ("whole model", "agrees")


# what calls are given, and in which units


def stepping(world: Planted, calls: Any, *tensors: tuple[int, ...], row: Any = None) -> Verdict:
    """The verdict where each rank has one optimizer for each of these sets of tensors."""
    stepped = [Stepped(number, "SGD", held) for number, held in enumerate(tensors)]
    return world.judge(right, calls=calls, stepped=stepped, row=row)


def dense_alone(step: int, rank: int, norm: float) -> list[Call]:
    return [Call("clip", 2.0, norm, tensors=(0,))]


def test_what_an_optimizer_steps_and_no_rank_clips_is_a_problem() -> None:
    verdict = stepping(experts(), dense_alone, (0, 1))
    assert verdict.exit_code == 1
    assert verdict.problems[0].startswith("1 of 2 stepped tensors is never clipped: experts (norm ")


def test_what_is_clipped_by_value_needs_no_norm() -> None:
    one = [Stepped(0, "SGD", (0, 1), by_value=(1,))]
    verdict = experts().judge(right, calls=dense_alone, stepped=one)
    assert not verdict.problems
    assert not any("no call is given" in finding for finding in verdict.findings)


def test_an_optimizer_without_a_clip_is_a_note() -> None:
    verdict = stepping(experts(), dense_alone, (0,), (1,))
    assert not verdict.problems
    assert any("SGD steps 1 tensor that no call is given: experts" in finding for finding in verdict.findings)


def test_gradients_of_zeros_alone_need_no_clip() -> None:
    def nothing(number: int, row: Row) -> Row:
        return replace(row, power_sum=0.0, power_sum_low=0.0, maximum=0.0) if number else row

    verdict = stepping(experts(), dense_alone, (0, 1), row=nothing)
    assert not verdict.problems


@pytest.mark.parametrize("steps_it", [True, False])
def test_what_one_rank_leaves_out_is_named_where_it_steps_it(steps_it: bool) -> None:
    tensors = [Logical(name, (4, 3), (replicate("dp"),)) for name in ("w", "head")]
    world = Planted({"dense": {"dp": 3}}, tensors)

    def calls(step: int, rank: int, norm: float) -> list[Call]:
        own = world.root(world.whole(step, "w")) if rank == 1 else norm
        return [Call("clip", 2.0, own, tensors=(0,) if rank == 1 else None)]

    verdict = stepping(world, calls, (0, 1) if steps_it else (0,))
    said = "rank 1 leaves out of its clip call what ranks 0, 2 pass: head (in 2 of 2 steps)"
    assert [problem.partition(" -> ")[0] for problem in verdict.problems] == ([said] if steps_it else [])
    assert ("left_out", None) in kinds(verdict)
    assert verdict.exit_code == 1


def test_the_problems_of_ranks_without_an_optimizer_are_notes() -> None:
    tensors = [Logical(name, (4, 3), (replicate("dp"),)) for name in ("w", "head")]
    world = Planted({"dense": {"dp": 2}}, tensors)
    verdict = world.judge(right, calls=lambda s, r, norm: [Call("clip", 2.0, norm, tensors=(0,) if r else None)])
    assert verdict.exit_code == 0
    assert any("rank 1 leaves out of its clip call" in finding for finding in verdict.findings)


@pytest.mark.parametrize("scaled_steps", [(0, 1), (1,)])
def test_a_right_norm_of_scaled_gradients_is_a_cause_of_its_own(scaled_steps: tuple[int, ...]) -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        return [Call("clip", 2.0, norm, max_norm=1.0, scale=1024.0 if step in scaled_steps else None)]

    verdict = experts().judge(right, calls=calls)
    assert [line.verdict for line in verdict.lines] == ["differs"] * 3
    assert kinds(verdict) == [("still_scaled", None)]
    assert verdict.lines[0].difference == pytest.approx(1023, rel=1e-6)
    assert f"in {len(scaled_steps)} of 2 steps" in verdict.lines[0].causes[0].text


def test_a_wrong_norm_of_scaled_gradients_has_two_causes() -> None:
    verdict = experts().judge(
        lambda w, s, r: w.root(6 * w.whole(s, "dense") + 3 * w.whole(s, "experts")),
        calls=lambda s, r, norm: [Call("clip", 2.0, norm, max_norm=1.0, scale=8.0)],
    )
    assert kinds(verdict) == [("still_scaled", None), ("all_ranks", None)]


def test_a_threshold_in_scaled_units_is_meant() -> None:
    verdict = experts().judge(right, calls=lambda s, r, norm: [Call("clip", 2.0, norm, max_norm=2048.0, scale=1024.0)])
    assert verdict.exit_code == 0
    assert any("seems to be meant so" in finding for finding in verdict.findings)


def test_steps_that_the_scaler_skips_need_no_division() -> None:
    world = experts()
    world.steps[0].values[0][0, 0] = math.inf
    calls = lambda s, r, norm: [Call("clip", 2.0, norm, max_norm=1.0, scale=None if s else 1024.0)]  # noqa: E731
    assert world.judge(lambda w, s, r: right(w, s, r) if s else math.inf, calls=calls).exit_code == 0


def test_a_difference_near_nothing_is_told_as_one() -> None:
    tensors = [Logical("w", (4, 3), (replicate("dp"),), dtype="float64")]
    world = Planted({"dense": {"dp": 2}}, tensors)
    verdict = world.judge(lambda w, s, r: right(w, s, r) * (1 + 1e-9), dtype="float64")
    assert kinds(verdict) == [("unknown", None)]
    assert "(1 +1.0e-09) times ours" in verdict.lines[0].causes[0].text
    text = as_text(verdict)
    assert "off by +1.0e-09" in text
    assert "--tolerance 1e-06 accepts it" in text


def test_a_group_whose_norm_is_known_and_right_is_not_blamed() -> None:
    def calls(step: int, rank: int, norm: float) -> list[Call]:
        dense = world.root(world.whole(step, "dense"))
        return [Call("total", 2.0, dense, tensors=(0,)), Call("apply", 2.0, norm)]

    world = experts()
    verdict = world.judge(lambda w, s, r: 1.37 * right(w, s, r), calls=calls)
    assert [line.verdict for line in verdict.lines] == ["differs", "agrees", "not seen"]


# one node of several


def test_a_node_that_holds_whole_copies_knows_the_exact_norm_and_is_no_whole_job() -> None:
    tensors = [Logical("w", (4, 3), (replicate("node"), shard(0, "dp_shard")))]
    world = Planted({"dense": {"node": 2, "dp_shard": 2}}, tensors)
    for ranks in ((0, 1), (2, 3)):
        verdict = world.judge(right, ranks=ranks)
        assert verdict.lines[0].verdict == "agrees"
        assert verdict.exit_code == 2
        assert f"ranks {ranks[0]}, {ranks[1]} of 4" in verdict.node
    wrong = world.judge(lambda w, s, r: w.root(w.power(s, r, "w")), ranks=(0, 1))
    assert ("axis_missing", "dp_shard") in kinds(wrong)
    assert wrong.exit_code == 1
    twice = world.judge(lambda w, s, r: w.root(2 * w.whole(s, "w")), ranks=(0, 1))
    assert kinds(twice) == [("summed_twice", "dp_shard")]  # which twice over the nodes would give as well


def test_a_node_whose_copies_differ_says_so() -> None:
    world = Planted({"dense": {"dp": 4}}, [Logical("w", (4, 3), (replicate("dp"),))])
    changed = iter(range(100))
    verdict = world.judge(right, ranks=(0, 1), row=lambda number, row: replace(row, fingerprint=next(changed)))
    assert verdict.replicas_differ
    assert verdict.exit_code == 1
    (said,) = [finding for finding in verdict.findings if "'w' should be equal on ranks that replicate it" in finding]
    assert said.endswith(" -> reduce the gradients of all copies before the clip")


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_parts_on_other_nodes_are_not_guessed(scale: float | None) -> None:
    tensors = [Logical("w", (4, 3), (shard(0, "dp_shard"),))]
    world = Planted({"dense": {"dp_shard": 4}}, tensors)
    calls = lambda s, r, norm: [Call("clip", 2.0, norm, max_norm=1.0, scale=scale)]  # noqa: E731
    verdict = world.judge(right, calls=calls, ranks=(0, 1))
    assert [line.verdict for line in verdict.lines] == ["not seen"]
    assert "lie over ranks of other nodes" in verdict.lines[0].why
    assert any("the ranks of this node clip by equal norms: " in finding for finding in verdict.findings)
    assert verdict.exit_code == (2 if scale is None else 1)
    assert len(verdict.problems) == (0 if scale is None else 1)
    assert "one node: ranks 0, 1 of 4" in as_text(verdict)


@pytest.mark.parametrize("wrong", [1.0, 1.37])
def test_a_norm_before_the_sum_over_ranks_is_not_that_of_its_group(wrong: float) -> None:
    def equal(number: int, row: Row) -> Row:
        return replace(row, power_sum=1.0, power_sum_low=0.0, scale=1.0)

    def calls(step: int, rank: int, norm: float) -> list[Call]:
        return [Call("total", 2.0, 1.0), Call("apply", 2.0, norm)]

    world = Planted({"dense": {"dp_shard": 2}}, [Logical("w", (4, 3), (shard(0, "dp_shard"),))])
    verdict = world.judge(lambda w, s, r: wrong * right(w, s, r), calls=calls, row=equal)
    assert verdict.lines[1].theirs == ()
    assert verdict.lines[1].verdict == ("agrees" if wrong == 1.0 else "not seen")
