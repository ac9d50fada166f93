"""Weights that drift apart while training goes on: they are named, with the steps between which it happened."""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")

import gradsync  # noqa: E402
from gradsync.errors import UsageError, WeightsDiverged  # noqa: E402
from gradsync.torch import _weights  # noqa: E402

STEPS = 14
CHANGED_AFTER = 4  # the step whose optimizer is followed by a change on one rank
ALL_AT_ONCE = {"weights_every": 1}


def model_of(dtype=torch.bfloat16):
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 1)).to(dtype)
    with torch.no_grad():  # ranks are threads, which share torch's random numbers
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.75, parameter.numel()).view_as(parameter))
    return model


def train(attach, rank, *, changed=1, steps=STEPS, each=None, **options):
    """The reports of the steps, in which one rank's layer norm changes once."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reports = []
    with attach(model, **options) as gs:
        for step in range(steps):
            model(torch.full((2, 5), 0.5 + step, dtype=torch.bfloat16)).float().square().mean().backward()
            reports.append(gs.step(optimizer))
            if step == CHANGED_AFTER and rank == changed:
                with torch.no_grad():
                    model[1].weight[2] += 0.25
            if each is not None:
                each(gs, step)
    return reports


@pytest.mark.parametrize("changed", [0, 1])
def test_weights_that_changed_on_one_rank_raise_on_all_before_the_next_optimizer_step(real_ranks, changed):
    def body(rank, attach):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with attach(model, divergence="raise", **ALL_AT_ONCE) as gs:
            for step in range(STEPS):
                before = [p.detach().clone() for p in model.parameters()]
                model(torch.ones(2, 5, dtype=torch.bfloat16)).float().square().mean().backward()
                try:
                    gs.step(optimizer)
                except WeightsDiverged as error:
                    assert all(p.grad is None for p in model.parameters())
                    assert all(map(torch.equal, before, model.parameters()))
                    return str(error), error.tensor, error.step, error.ranks, gs.report.step
                if step == CHANGED_AFTER and rank == changed:
                    with torch.no_grad():
                        model[1].weight[2] += 0.25
        return None

    found = real_ranks(3, body)
    assert found == [found[0]] * 3
    text, tensor, step, ranks, reported = found[0]
    others = ", ".join(str(rank) for rank in range(3) if rank != changed)
    assert (
        f"differ at step 5: '1.weight' on rank {changed} (equal on ranks {others}); at step 4 they were equal" in text
    )
    assert (tensor, step, ranks, reported) == ("1.weight", 5, (changed,), 5)


def test_a_report_names_them_and_training_goes_on(real_ranks, caplog):
    with caplog.at_level(logging.WARNING, "gradsync"):
        results = real_ranks(2, lambda rank, attach: train(attach, rank, **ALL_AT_ONCE))
    wanted = gradsync.Divergence("1.weight", (1,), (), (0, 1), "weights")
    for reports in results:
        assert [report.divergence for report in reports] == [()] * 5 + [(wanted,)] * (STEPS - 5)
    assert "at step 4 they were equal" in caplog.text


def test_all_weights_are_compared_once_in_so_many_steps_a_part_at_a_time(real_ranks, monkeypatch):
    compared: list[tuple[int, int]] = []
    compare = _weights.WeightWatch._compare

    def counting(self, due, timeout):
        compared.append((self._of.rank, sum(map(due, range(len(self._tensors))))))
        return compare(self, due, timeout)

    monkeypatch.setattr(_weights.WeightWatch, "_compare", counting)
    results = real_ranks(2, lambda rank, attach: train(attach, rank, changed=None, steps=40, weights_every=20))
    assert not any(report.divergence for reports in results for report in reports)
    for rank in range(2):
        counts = [count for one, count in compared if one == rank]
        assert len(counts) == 3 + 18  # after the first three steps, then every other one
        assert sum(counts[:3]) == sum(counts[3:13]) == 6
        assert max(counts) < 6


# One tensor of each part of the weights that is compared first, second and third.
FIRST_THREE = ("first.weight", "norm.bias", "norm.weight")


def drift(attach, rank, name, after, steps, *, epochs=1, **options):
    """The steps whose reports name the weights, of which those of one rank change after a step."""
    parts = {"first": torch.nn.Linear(5, 6), "norm": torch.nn.LayerNorm(6), "last": torch.nn.Linear(6, 1)}
    model = torch.nn.Sequential(OrderedDict(parts)).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = {}
    step = 0
    for _ in range(epochs):
        with attach(model, **options) as gs:
            for _ in range(steps):
                model(torch.ones(2, 5, dtype=torch.bfloat16)).float().square().mean().backward()
                for one in gs.step(optimizer).divergence:
                    found.setdefault(one.tensor, step)
                if step == after and rank == 1:
                    with torch.no_grad():
                        model.get_parameter(name).flatten()[0] += 0.25
                step += 1
    return found


def test_the_tensors_of_these_tests_are_of_different_thirds():
    parts = [zlib.crc32(name.encode()) % 10 for name in FIRST_THREE]
    assert [part % 3 for part in parts] == [0, 1, 2]


@pytest.mark.parametrize("name", FIRST_THREE)
def test_weights_that_drift_after_the_first_step_are_named_within_the_next_three(real_ranks, name):
    third = FIRST_THREE.index(name)
    assert real_ranks(2, lambda rank, attach: drift(attach, rank, name, 0, 5)) == [{name: 1 + third}] * 2


@pytest.fixture(scope="module")
def often_checking(daemon_binary):
    """A daemon that checks every fifth step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSYNCD", daemon_binary)
        patch.setenv("GRADSYNC_ENGINE_CHECK_EVERY", "5")
        with gradsync.connect(spawn=True, timeout=60) as client:
            yield client.address


def test_a_part_is_compared_in_the_step_after_each_that_the_daemon_checked(often_checking, ranks_at, monkeypatch):
    compared: list[tuple[int, int]] = []
    compare = _weights.WeightWatch._compare

    def noting(self, due, timeout):
        compared.append((self._of.rank, self._of.last_step))
        return compare(self, due, timeout)

    monkeypatch.setattr(_weights.WeightWatch, "_compare", noting)
    found = ranks_at(often_checking)(2, lambda rank, attach: drift(attach, rank, "first.weight", 3, 60))
    turn = zlib.crc32(b"first.weight") % 10
    assert found == [{"first.weight": 6 + 5 * turn}] * 2
    for rank in range(2):
        assert [step for one, step in compared if one == rank] == [1, 2, 3, *range(6, 60, 5)]


def test_a_run_that_goes_on_begins_with_checks_again(real_ranks):
    """The ranks leave after seven steps, and come back to the job: the daemon counts steps of an epoch."""
    found = real_ranks(2, lambda rank, attach: drift(attach, rank, "first.weight", 7, 7, epochs=2, weights="skip"))
    assert found == [{}] * 2, "who skips the check of weights has none while training"
    found = real_ranks(2, lambda rank, attach: drift(attach, rank, "first.weight", 7, 7, epochs=2))
    assert found == [{"first.weight": 8}] * 2


def test_turns_follow_checks_and_the_interval_whichever_comes_first():
    turns = _weights.Turns(4, 3)
    checked_next = [True, True, False, False, False, False, False, False, False, True, False, False]
    due = [turns.after_step(9, checked) for checked in checked_next]
    # Steps 1 to 3 follow checked ones, then every third; step 10 is checked.
    assert [sorted(parts) for parts in due] == [[], [0, 3], [1], [2], [], [], [0], [], [], [1], [], [2]]
    assert turns.after_step(10, True) == frozenset(), "the first step of an epoch has nothing before it"
    assert turns.after_step(10, True) == {0, 3}
    assert not any(_weights.Turns(1, 0).after_step(1, True) for _ in range(9)), "no interval: never"


def test_nothing_is_compared_where_that_is_not_wanted(real_ranks):
    results = real_ranks(2, lambda rank, attach: train(attach, rank, weights_every=0))
    assert not any(report.divergence for reports in results for report in reports)


def test_verification_on_demand(real_ranks):
    def body(rank, attach):
        said = []

        def each(gs, step):
            try:
                gs.verify_weights(timeout=100.0)
                said.append("")
            except WeightsDiverged as error:
                said.append(error.tensor)

        train(attach, rank, each=each, steps=7, weights_every=0)
        return said

    assert real_ranks(2, body) == [["", "", "", "", "1.weight", "1.weight", "1.weight"]] * 2


def test_a_verification_that_a_rank_does_not_take_part_in_ends_at_its_deadline(real_ranks):
    def body(rank, attach):
        with attach(model_of()) as gs:
            if rank == 0:
                with pytest.raises(gradsync.errors.DeclareTimeout):
                    gs.verify_weights(timeout=0.3)
            gs.finish()  # the ranks meet
            gs.verify_weights(timeout=100.0)
            return "verified"

    assert real_ranks(2, body) == ["verified"] * 2


def test_what_keeps_it_from_comparing_stops_no_training(real_ranks, monkeypatch, caplog):
    def refuse(self, timeout):
        raise gradsync.errors.ConnectionFailed("refused", "nobody is there")

    monkeypatch.setattr(_weights.WeightWatch, "_joined", refuse)
    with caplog.at_level(logging.WARNING, "gradsync"):
        results = real_ranks(2, lambda rank, attach: train(attach, rank, **ALL_AT_ONCE))
    assert all(len(reports) == STEPS for reports in results)
    said = [record.getMessage() for record in caplog.records if "comparison of the weights" in record.getMessage()]
    assert len(said) == 2 * 3  # then it is given up
    assert sum("given up" in text for text in said) == 2


def test_a_comparison_in_which_the_daemon_ends_is_given_up_on_all_ranks(
    restartable_daemon, ranks_at, monkeypatch, caplog
):
    """One rank has asked, the other has not and does not ask again: nobody may wait for it."""
    begin = gradsync.ReducedGrads.begin
    times = {0: 0, 1: 0}

    def begun(self, step):
        rank = self._job.rank
        times[rank] += 1
        if times[rank] != 3:
            return begin(self, step)
        underway = begin(self, step) if rank == 0 else None
        restartable_daemon.restart_when_all_are_here()
        if underway is None:
            raise gradsync.errors.ConnectionLost("the rank gives up")
        return underway

    monkeypatch.setattr(gradsync.ReducedGrads, "begin", begun)
    with caplog.at_level(logging.WARNING, "gradsync"):
        results = ranks_at(restartable_daemon.address)(
            2, lambda rank, attach: train(attach, rank, changed=1, **ALL_AT_ONCE)
        )
    given_up = [one for one in caplog.records if "comparison of the weights" in one.getMessage()]
    assert len(given_up) == 2
    assert all(isinstance(one.args[2], gradsync.errors.ConnectionLost) for one in given_up)
    for reports in results:
        assert [one.tensor for one in reports[-1].divergence] == ["1.weight"], "later comparisons work"


def test_the_numbers_that_are_not_allowed_are_refused(real_ranks):
    for options in ({"weights_every": -1}, {"weights_every": True}, {"divergence": "warn"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            real_ranks(1, lambda rank, attach, options=options: attach(model_of(), **options))
