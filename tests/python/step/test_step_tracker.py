"""StepTracker against a model that remembers everything and decides from scratch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsync._step._step_tracker import StepTracker
from gradsync.errors import AccumulationError


class Model:
    """Remembers the calls of a step."""

    def __init__(self, buckets: list[list[int]], accumulate: int) -> None:
        self.buckets, self.accumulate = buckets, accumulate
        self.calls: list[tuple[str, int]] = []
        self.said: set[int] = set()

    def counts(self, tensor: int) -> int:
        return self.calls.count(("ready", tensor))

    def is_unused(self, tensor: int) -> bool:
        return ("unused", tensor) in self.calls

    def is_done(self, tensor: int) -> bool:
        return self.is_unused(tensor) or self.counts(tensor) == self.accumulate

    def is_legal(self, call: tuple[str, int]) -> bool:
        kind, tensor = call
        if kind == "ready":
            return not self.is_done(tensor)
        return self.counts(tensor) == 0

    def apply(self, call: tuple[str, int]) -> int | None:
        """The bucket that becomes complete, if any."""
        self.calls.append(call)
        for index, bucket in enumerate(self.buckets):
            if index not in self.said and bucket and all(self.is_done(tensor) for tensor in bucket):
                self.said.add(index)
                return index
        return None


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[list[int]], int]:
    tensors = draw(st.integers(0, 6))
    order = draw(st.permutations(range(tensors)))
    buckets: list[list[int]] = []
    for tensor in order:
        if not buckets or draw(st.booleans()):
            buckets.append([])
        buckets[-1].append(tensor)
    return tensors, buckets, draw(st.integers(1, 3))


@settings(max_examples=300, deadline=None)
@given(layouts(), st.data())
def test_agrees_with_the_model(layout: tuple[int, list[list[int]], int], data: st.DataObject) -> None:
    tensors, buckets, accumulate = layout
    names = [f"t{index}" for index in range(tensors)]
    tracker = StepTracker(names, buckets, accumulate)
    model = Model(buckets, accumulate)
    calls = st.tuples(st.sampled_from(["ready", "ready", "unused", "reset"]), st.integers(0, max(0, tensors - 1)))
    for kind, tensor in data.draw(st.lists(calls, max_size=40)):
        if kind == "reset" or not tensors:
            tracker.reset()
            model = Model(buckets, accumulate)
            continue
        call = tracker.ready if kind == "ready" else tracker.mark_unused
        if model.is_legal((kind, tensor)):
            assert call(tensor) == model.apply((kind, tensor))
        else:
            with pytest.raises(AccumulationError) as caught:
                call(tensor)
            assert caught.value.tensor == names[tensor]
        assert tracker.missing() == [t for t in range(tensors) if not model.is_done(t)]
        assert tracker.unused() == [t for t in range(tensors) if model.is_unused(t)]
        assert tracker.complete() == (not tracker.missing())


@settings(max_examples=100, deadline=None)
@given(layouts(), st.randoms())
def test_each_bucket_completes_exactly_once_in_any_order(layout: tuple[int, list[list[int]], int], random) -> None:
    tensors, buckets, accumulate = layout
    tracker = StepTracker([str(t) for t in range(tensors)], buckets, accumulate)
    calls = [tensor for tensor in range(tensors) for _ in range(accumulate)]
    for _ in range(2):
        random.shuffle(calls)
        completed = [bucket for tensor in calls if (bucket := tracker.ready(tensor)) is not None]
        assert sorted(completed) == list(range(len(buckets)))
        assert tracker.complete()
        tracker.reset()


def test_one_call_too_many_names_the_tensor_and_the_counts() -> None:
    tracker = StepTracker(["wq"], [[0]], 2)
    tracker.ready(0)
    tracker.ready(0)
    with pytest.raises(AccumulationError, match=r"'wq' became ready 3 times.*accumulate=2"):
        tracker.ready(0)
    assert tracker.complete()


def test_unused_after_ready_names_the_tensor() -> None:
    tracker = StepTracker(["wq"], [[0]], 2)
    tracker.ready(0)
    with pytest.raises(AccumulationError, match="'wq' cannot be unused"):
        tracker.mark_unused(0)
    assert tracker.missing() == [0]
