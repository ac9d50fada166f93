"""A connection that breaks while a module trains, and a daemon that is killed under it."""

from __future__ import annotations

import copy

import pytest
from models import assert_close, assert_same_bits, loss_of, mlp, train_alone, weights
from torch import nn
from torch.optim import SGD

from gradsync.errors import ConnectionLost, UsageError


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def cut(client) -> None:
    client._channel._connection._websocket.socket.shutdown(2)  # SHUT_RDWR: as if the connection broke


def test_training_goes_on_over_broken_connections(real_ranks):
    """Before backward, with buckets launched early, and right before step(): never lost, never reduced twice."""
    template = mlp()
    alone, norms = train_alone(template, steps=9, parts=2)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        seen = []
        with attach(model, accumulate=2) as gs:
            client = real_ranks.clients[rank]
            for step in range(9):
                if step % 3 == 0 and step % 2 == rank:
                    cut(client)
                (loss_of(model, step, rank) / 2).backward()
                if step % 3 == 1:
                    cut(client)
                (loss_of(model, step, rank) / 2).backward()
                if step % 3 == 2 and step % 2 == rank:
                    cut(client)
                seen.append(gs.step(optimizer).norm)
            return weights(model), seen, gs.stats()

    results = real_ranks(2, body)
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(alone))
    for _, seen, stats in results:
        assert seen == pytest.approx(norms, rel=1e-6)
        assert stats.launched_early > 0


def test_training_goes_on_over_killed_daemons(restartable_daemon, ranks_at):
    """Some buckets may have been reduced when the daemon ends: then the step is computed anew, on both ranks."""
    template = mlp()
    alone, _ = train_alone(template, steps=6, parts=2)
    ranks = ranks_at(restartable_daemon.address)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        lost = 0
        with attach(model) as gs:
            for step in range(6):
                loss_of(model, step, rank).backward()
                if step % 2:
                    restartable_daemon.restart_when_all_are_here()
                failure = None
                try:
                    gs.step(optimizer)
                except ConnectionLost as error:
                    failure = error
                if failure is not None:
                    assert failure.step_lost
                    assert all(p.grad is None for p in model.parameters())
                    lost += 1
                    loss_of(model, step, rank).backward()
                    gs.step(optimizer)
        return weights(model), lost

    results = ranks(2, body)
    assert results[0][1] == results[1][1]
    assert_same_bits(results[0][0], results[1][0])
    assert_close(results[0][0], weights(alone))


def test_attaching_again_after_a_close_needs_nothing_of_the_daemon_before(restartable_daemon, ranks_at):
    template = mlp()
    ranks = ranks_at(restartable_daemon.address)

    def body(rank, attach):
        model = copy.deepcopy(template)
        optimizer = sgd(model)
        gs = attach(model)
        loss_of(model, 0, rank).backward()
        gs.step(optimizer)
        restartable_daemon.restart_when_all_are_here()
        gs.close()
        with pytest.raises(UsageError, match="attach again"):
            gs.step(optimizer)
        with attach(model, timeout=20.0) as gs:  # compares the weights of the ranks
            loss_of(model, 1, rank).backward()
            gs.step(optimizer)
        return weights(model)

    results = ranks(2, body)
    assert_same_bits(results[0], results[1])
