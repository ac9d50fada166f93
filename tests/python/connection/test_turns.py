"""Whose turn it is to read: a thread that cannot read itself must not keep the reader thread from it."""

from __future__ import annotations

import threading

import pytest

from gradsync._transport import _turns

JOIN_S = 20.0


def test_a_thread_that_found_the_turn_taken_does_not_keep_the_reader_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader brings a connection back, a call begins meanwhile, and the reader reads its answer at once."""
    monkeypatch.setattr(_turns, "_LENT_S", 2 * JOIN_S)
    turns, closing = _turns.Turns(), threading.Event()
    reconnects, called, read = threading.Event(), threading.Event(), threading.Event()

    def reader() -> None:
        with turns.of_reader(closing, lambda: False):
            reconnects.set()
            called.wait(JOIN_S)
        with turns.of_reader(closing, lambda: True):
            read.set()

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    assert reconnects.wait(JOIN_S)
    turns.lend()  # as a call does before it sends
    assert not turns.take()
    called.set()
    assert read.wait(JOIN_S)
    thread.join(JOIN_S)


def test_the_reader_that_brought_the_answer_stays_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "_LENT_S", 2 * JOIN_S)
    turns, closing = _turns.Turns(), threading.Event()
    reads, called, again = threading.Event(), threading.Event(), threading.Event()

    def reader() -> None:
        with turns.of_reader(closing, lambda: False):
            reads.set()
            called.wait(JOIN_S)
        with turns.of_reader(closing, lambda: False):
            again.set()

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    assert reads.wait(JOIN_S)
    turns.lend()
    assert not turns.take()
    called.set()
    assert not again.wait(0.2)
    turns.call_reader()
    assert again.wait(JOIN_S)
    thread.join(JOIN_S)


def test_the_reader_stays_aside_while_the_turn_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "_LENT_S", 2 * JOIN_S)
    turns, closing = _turns.Turns(), threading.Event()
    read = threading.Event()

    def reader() -> None:
        with turns.of_reader(closing, lambda: True):
            read.set()

    turns.lend()
    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    assert turns.take()
    turns.give_back(lambda: True)
    assert not read.wait(0.2)
    turns.call_reader()
    assert read.wait(JOIN_S)
    thread.join(JOIN_S)
