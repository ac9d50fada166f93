"""A lost connection: what comes back, what is sent again, and what is told to the caller."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from background import in_thread
from fake_daemon import NO_REPLY, FakeDaemon, Fault

import gradsync
from gradsync import Tensor, _job
from gradsync._session import _rank_session
from gradsync._transport import _channel, _connection, _handshake
from gradsync.errors import CallTimeout, ConnectionFailed, ConnectionLost, Superseded


@pytest.fixture
def grads(job: gradsync.Job) -> gradsync.Grads:
    return job.declare([Tensor("a", (1,))])


def test_a_finish_in_flight_is_sent_again_with_the_same_key(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    daemon.script["step.finish"] = lambda params: NO_REPLY
    grads.ready("a")
    result = in_thread(grads.finish)
    daemon.wait_for("step.finish")
    del daemon.script["step.finish"]
    daemon.drop_connections()
    assert result().step == 0
    first, second = daemon.of("step.finish")
    assert first == second == {"epoch": 1, "attempt": 0, "step": 0, "ready": "all"}
    assert daemon.of("job.attach")[0] == daemon.of("job.attach")[1]
    ids = {params["client_id"] for params in daemon.of("session.initialize")}
    assert len(ids) == 1
    grads.ready("a")
    assert grads.finish().step == 1


def test_the_client_comes_back_by_itself_while_no_thread_calls(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    for times in range(2, 5):
        daemon.drop_connections()
        daemon.wait_for("job.attach", times)
    grads.ready("a")
    assert grads.finish().step == 0


def test_a_call_made_while_the_connection_is_away_waits_for_it(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_numbers = random.getstate()
    daemon.stop_listening()
    lost = threading.Semaphore(0)
    connection = client._channel._connection
    original = connection._open

    def handshake(deadline: Callable[[], float]) -> Any:
        lost.release()
        return original(deadline)

    monkeypatch.setattr(connection, "_open", handshake)
    for _ in range(3):
        assert lost.acquire(timeout=40)
    result = in_thread(lambda: client.call("status.get"))
    daemon.listen()
    assert result()["state"] == "serving"
    assert random.getstate() == random_numbers, "waits are random, but not at a training's expense"


def test_a_daemon_that_dies_during_the_handshake_is_tried_again(
    grads: gradsync.Grads, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = _handshake.open_socket
    dead = 0

    def open_socket(path: str, timeout: float) -> socket.socket:
        nonlocal dead
        if dead == 2:
            return original(path, timeout)
        dead += 1
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    monkeypatch.setattr(_handshake, "open_socket", open_socket)
    with pytest.raises(ConnectionFailed, match="ended the connection at once") as ended:
        gradsync.connect(daemon.path, timeout=0)
    assert ended.value.reason == "ending"
    daemon.drop_connections()
    grads.ready("a")
    assert grads.finish().step == 0
    assert dead == 2


def test_a_call_that_must_not_be_repeated_is_told(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.script["job.detach"] = lambda params: NO_REPLY
    result = in_thread(lambda: client.call("job.detach"))
    daemon.wait_for("job.detach")
    daemon.drop_connections()
    with pytest.raises(ConnectionLost, match=r"while job\.detach was under way"):
        result()
    assert client.status()["state"] == "serving"
    del daemon.script["job.detach"]


def test_a_rank_that_cannot_be_taken_again_gives_the_daemons_error(grads: gradsync.Grads, daemon: FakeDaemon) -> None:
    def refuse(params: dict[str, Any]) -> object:
        raise Fault("superseded", "rank 0 was taken over by process 99")

    daemon.script["job.attach"] = refuse
    daemon.script["step.finish"] = lambda params: NO_REPLY
    grads.ready("a")
    result = in_thread(grads.finish)
    daemon.wait_for("step.finish")
    daemon.drop_connections()
    with pytest.raises(Superseded, match="process 99"):
        result()


def test_subscriptions_are_made_again(client: gradsync.Client, daemon: FakeDaemon) -> None:
    came = threading.Event()
    with client.subscribe(["step"], lambda params: came.set()):
        daemon.drop_connections()
        daemon.wait_for("events.subscribe", 2)
        client.status()
        params = {"subscription": 2, "topic": "step", "job": "j", "dropped": 0, "event": {}}
        daemon.push({"jsonrpc": "2.0", "method": "events.notification", "params": params})
        assert came.wait(40)


def test_a_daemon_that_stays_away_ends_the_client(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_RECONNECT_S", 0.2)
    daemon.stop_listening()
    with pytest.raises(ConnectionLost, match="does not come back"):
        client.status()
    with pytest.raises(ConnectionLost, match="does not come back"):
        client.status()
    daemon.listen()


def test_a_closing_client_does_not_wait_for_a_daemon_that_is_away(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon.stop_listening()
    result = in_thread(client.status)
    client._channel.close()
    with pytest.raises(ConnectionLost, match="closed"):
        result()
    daemon.listen()


@pytest.fixture(params=["detach", "abandon", "close", "drop"])
def leave(
    request: pytest.FixtureRequest, client: gradsync.Client, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    """What makes a rank leave; if it waited for a daemon, it would do so for an hour."""
    for module, name in ((_rank_session, "PATIENCE_S"), (_job, "QUICK_S"), (_connection, "_RECONNECT_S")):
        monkeypatch.setattr(module, name, 3600.0)
    job = client.attach(job="j", rank=0, world_size=1)
    ways = {"detach": job.detach, "abandon": job.abandon, "close": client.close, "drop": client._finalizer}
    way: Callable[[], Any] = ways[request.param]
    return way


def test_a_rank_leaves_without_waiting_for_a_daemon_that_is_away(leave: Callable[[], Any], daemon: FakeDaemon) -> None:
    daemon.stop_listening()
    in_thread(leave)()
    daemon.listen()


def test_a_rank_that_leaves_while_it_is_attached_again_has_left_the_daemon(
    leave: Callable[[], Any], client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached, left = threading.Event(), threading.Event()
    resume = client._session._resume

    def and_then_wait(*arguments: Any) -> bool:
        resumed = resume(*arguments)
        attached.set()
        assert left.wait(50)
        return resumed

    monkeypatch.setattr(client._session, "_resume", and_then_wait)
    daemon.drop_connections()
    assert attached.wait(50)
    gone = in_thread(leave)
    if leave not in (client.close, client._finalizer):  # those wait for the thread that connects
        gone()
    else:
        assert client._channel._connection._closing.wait(50)
    left.set()
    gone()
    daemon.wait_for("job.detach", 1)


def test_noise_from_the_daemon_is_a_lost_connection(client: gradsync.Client, daemon: FakeDaemon) -> None:
    daemon._connections[-1].send("<html>")
    daemon.wait_for("session.initialize", 2)
    assert client.status()["state"] == "serving"


def test_no_answer_is_a_timeout_and_the_late_answer_is_ignored(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_channel, "_GRACE_S", 0.1)
    daemon.script["status.get"] = lambda params: NO_REPLY
    with pytest.raises(CallTimeout, match=r"status\.get") as caught:
        client.call("status.get", timeout=0.1)
    assert isinstance(caught.value, TimeoutError)
    del daemon.script["status.get"]
    daemon.push({"jsonrpc": "2.0", "id": 2, "result": {"late": True}})
    monkeypatch.setattr(_channel, "_GRACE_S", 40)
    assert client.status()["state"] == "serving"


def test_the_clients_timer_waits_with_a_paused_rank(
    grads: gradsync.Grads, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_channel, "_GRACE_S", 0.1)
    normal = daemon.on_status_get
    asked = threading.Event()

    def status(params: dict[str, Any]) -> Any:
        paused = not asked.is_set()
        asked.set()
        return {**normal(params), "jobs": [{"job": "j", "ranks": [{"rank": 1, "paused": paused}]}]}

    daemon.script["status.get"] = status
    daemon.script["step.finish"] = lambda params: NO_REPLY
    with pytest.raises(CallTimeout):
        grads.finish(ready="all", timeout=0.1)
    assert len(daemon.of("status.get")) == 2


def test_deadlines_that_the_daemon_announces_are_those_of_the_timer(daemon: FakeDaemon) -> None:
    normal = daemon.on_session_initialize
    daemon.script["session.initialize"] = lambda params: {**normal(params), "limits": {"step_s": 7200}}
    with gradsync.connect(daemon.path) as client:
        welcome = client._session.welcome
        assert (welcome.declare_s, welcome.first_step_s, welcome.step_s) == (300, 1800, 7200)


def test_a_subscription_that_is_refused_after_the_loss_does_not_end_the_client(
    client: gradsync.Client, daemon: FakeDaemon
) -> None:
    def refuse(params: dict[str, Any]) -> object:
        raise Fault("limit_exceeded", "subscriptions: 1")

    with client.subscribe(["step"], print):
        daemon.script["events.subscribe"] = refuse
        daemon.drop_connections()
        daemon.wait_for("events.subscribe", 2)
        assert client.status()["state"] == "serving"


def test_an_answer_that_breaks_the_reader_ends_the_client_instead_of_hanging_it(
    grads: gradsync.Grads, daemon: FakeDaemon
) -> None:
    daemon.script["job.attach"] = lambda params: {"no": "resumed"}
    daemon.script["step.finish"] = lambda params: NO_REPLY
    grads.ready("a")
    result = in_thread(grads.finish)
    daemon.wait_for("step.finish")
    daemon.drop_connections()
    with pytest.raises(ConnectionLost, match="resumed"):
        result()
