"""A request and its answer, brought by the thread that waits or by another one."""

from __future__ import annotations

import threading

import pytest
from test_reconnect import in_thread

from gradsync._pending import Pending
from gradsync.errors import ConnectionLost

WAIT_S = 20.0


def pending() -> Pending:
    return Pending(1, "{}", "status.get", idempotent=True, session=False)


def test_a_wait_ends_with_its_time_or_with_the_answer_of_another_thread() -> None:
    call = pending()
    call.wait(0.0)
    assert not call.done
    waits = threading.Event()

    def wait() -> object:
        waits.set()
        call.wait(WAIT_S)
        return call.result()

    result = in_thread(wait)
    assert waits.wait(WAIT_S)
    call.answer(None)
    assert result() is None
    call.wait(WAIT_S)  # again, and at once
    assert call.done
    assert call.result() is None


def test_an_error_is_raised_as_often_as_it_is_asked_for() -> None:
    call = pending()
    call.fail(ConnectionLost("gone"))
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="gone"):
            call.result()
